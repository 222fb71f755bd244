"""
Claims under random faults, restarts and fail-overs: nothing is given twice at any moment, every allocation passes the API server's and the
drivers' checks, and at rest nothing is held for pods that do not use it.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pytest

from koord_numa.app.runtime import Runtime
from koord_numa.core.objects.claims import DeviceUsage
from koord_numa.sandbox.apiserver import ApiError, ApiServer, DeleteOptions
from koord_numa.sandbox.machines.description import read_descriptions
from koord_numa.wire.resource_claims import parse_device_class, parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice, parse_taint_rule
from tests.chaos.claims import MACHINES, ClaimLaws, any_claimant
from tests.chaos.storm import Storm
from tests.chaos.test_chaos import CONVERGENCE, SETTINGS, ReplicaPair, never_at_rest, short_pauses, unhurried
from tests.chaos.truth import Objects, placeable, rebuilt
from tests.e2e.world import world

pytestmark = [pytest.mark.chaos, pytest.mark.e2e]

__all__ = ["short_pauses"]  # a fixture that every test of this module uses

AT_ONCE = DeleteOptions(grace=0)
TARGETS = (
    ("get", "resourceclaims", ""),
    ("update", "resourceclaims", ""),
    ("update", "resourceclaims", "status"),
    ("update", "resourceclaims", "status"),
    ("create", "resourceclaims", ""),
    ("delete", "resourceclaims", ""),
    ("patch", "pods", "status"),
    ("create", "pods", "binding"),
    ("list", "*", "*"),
    ("watch", "*", "*"),
    ("get,update", "leases", ""),
    ("*", "*", "*"),
)


@dataclass(slots=True)
class ClaimChurn:
    """Pods with claims come and go."""

    server: ApiServer
    dice: Random
    created: int = 0
    _present: list[str] = field(default_factory=list)

    async def go_on(self, pods: int) -> None:
        """Act until so many pods have been created."""
        while self.created < pods:
            for _ in range(self.dice.randint(1, 4)):
                self._act()
            await asyncio.sleep(self.dice.uniform(0.0, 0.08))

    def _act(self) -> None:
        if len(self._present) < 60 and self.dice.random() < 0.65:
            name = f"claimant-{self.created}"
            self.server.store.create(any_claimant(name, self.dice))
            self._present.append(name)
            self.created += 1
        elif self.dice.random() < 0.2:
            self._change_rule()
        elif self._present:
            name = self._present.pop(self.dice.randrange(len(self._present)))
            with suppress(ApiError):
                self.server.store.delete("pods", name, "default", AT_ONCE)

    def _change_rule(self) -> None:
        """A DeviceTaintRule comes or goes: devices of one node, or of one name on all nodes, are not allocated any more."""
        name = f"rule-{self.dice.randrange(3)}"
        with suppress(ApiError):
            self.server.store.delete("devicetaintrules.resource.k8s.io", name, options=AT_ONCE)
            return
        selector = self.dice.choice(
            [{"pool": f"claims-{self.dice.randrange(8)}"}, {"device": "gpu-0"}, {"pool": "none"}]
        )
        effect = self.dice.choice(["NoSchedule", "NoExecute", "None"])
        spec = {"deviceSelector": selector, "taint": {"key": "chaos", "effect": effect}}
        rule = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": name}, "spec": spec}
        self.server.store.create(rule)

    def thin_out(self, left: int) -> None:
        """So few pods stay that all of them could fit."""
        while len(self._present) > left:
            with suppress(ApiError):
                self.server.store.delete("pods", self._present.pop(), "default", AT_ONCE)


def _believed(runtime: Runtime) -> tuple[DeviceUsage, int]:
    return runtime.scheduler.claims.usage, len(runtime.scheduler.claims.assumed)


KINDS: Final = ("resourceslices", "deviceclasses", "resourceclaims", "devicetaintrules")


async def unsettled(server: ApiServer, replicas: ReplicaPair, laws: ClaimLaws) -> list[str]:
    """Return the reasons why the cluster is not at rest."""
    objects = Objects.of(server.store)
    slices, classes, allocated, rules = (server.store.list(f"{kind}.resource.k8s.io") for kind in KINDS)

    def judge() -> list[str]:
        true = rebuilt(objects, SETTINGS)
        parts = (parse_resource_slice(each).parts for each in slices)
        true.claims.replace_slices(each for each in parts if each is not None)
        true.claims.replace_taint_rules(map(parse_taint_rule, rules))
        true.claims.replace_classes(map(parse_device_class, classes))
        true.claims.replace_claims(map(parse_resource_claim, allocated))
        true.claims.synced()
        return [f"{name} fits on {node} and waits" for name, node in placeable(true, objects).items()]

    found = await asyncio.to_thread(judge) + laws.leaks()
    for replica in replicas.present:
        usage, assumed = await replica.ask(_believed, (DeviceUsage(), -1))
        if assumed or usage != laws.usage():
            wrong = usage.exclusive.items() ^ laws.usage().exclusive.items()
            found.append(f"{replica.identity} believes in {assumed} assumed claims, and differs in {sorted(wrong)}")
    return found


async def test_claims_under_faults_and_fail_overs(chaos_seed: int, chaos_pods: int, tmp_path: Path) -> None:
    print(f"chaos seed {chaos_seed}, {chaos_pods} pods")
    async with world(tmp_path, MACHINES) as cluster:
        laws = ClaimLaws(cluster.server.store, read_descriptions(MACHINES, tmp_path))
        devices = laws.start()
        churn = ClaimChurn(cluster.server, Random(chaos_seed))
        storm = Storm(cluster.server, Random(chaos_seed + 1), targets=TARGETS)
        replicas = ReplicaPair(cluster.kubeconfig, Random(chaos_seed + 2))
        disruption = asyncio.create_task(replicas.disrupt())
        left = ["not looked at"]
        try:
            await asyncio.gather(churn.go_on(chaos_pods // 2), storm.inject(chaos_pods // 8))
            disruption.cancel()
            cluster.server.faults.clear()
            churn.thin_out(30)
            async with asyncio.timeout(CONVERGENCE):
                while left and not replicas.errors:
                    cluster.rack.publish()
                    left = await unhurried(lambda: unsettled(cluster.server, replicas, laws))
        except TimeoutError:
            found = await never_at_rest(cluster.server, replicas, left)
            pytest.fail(f"seed {chaos_seed} never comes to rest:\n{found}")
        finally:
            disruption.cancel()
            await replicas.end()
            devices.stop()
        print(f"{churn.created} pods, {laws.allocated} allocations, {storm.hits} faults of {len(storm.kinds)} kinds")
        assert laws.broken == []
        assert devices.kubelets.refusals == []
        assert replicas.errors == []
        assert (
            laws.allocated >= 10
        )  # how many depends on how fast the machine is; most of those that are left at the end fit
