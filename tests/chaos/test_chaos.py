"""
Under random faults every pod that fits is bound once, nothing is held twice, and ledgers end as the API objects say.

Two schedulers, an API server with faults of every kind, and a cluster in constant change. The seed is printed; ``--chaos-seeds`` and
``--chaos-pods`` size the runs. ``make chaos`` has seeds of 5,000 pods and 1,000 faults each.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging import CRITICAL, getLogger
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

import pytest

from koord_numa.app.runtime import Runtime
from koord_numa.cluster import lister
from koord_numa.engine.binding import binding_cycle
from koord_numa.engine.scheduler import Scheduler
from koord_numa.handlers import triggers as kopf_settings
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.machines import Fleet
from koord_numa.settings import BackoffSettings, LeaseSettings, Settings
from tests.chaos.churn import Churn
from tests.chaos.diagnosis import diagnosis
from tests.chaos.kinds import GPU, MACHINES
from tests.chaos.replicas import Replica
from tests.chaos.storm import Storm
from tests.chaos.truth import Ledgers, Objects, broken, differences, ledgers, placeable, rebuilt, silent, unbalanced
from tests.cluster.objects import PATIENCE
from tests.e2e.world import World, world

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.e2e,
]

SETTINGS = Settings(
    lease=LeaseSettings(duration=2.0, renew=1.2, retry=0.2),
    cool_down=BackoffSettings(initial=0.2, max=0.5),
    parked_retry_seconds=1.0,
    settle_seconds=1.0,
    api_backoff=BackoffSettings(initial=0.05, max=0.5),
)
"""Times of a scheduler in a hurry: what would take minutes takes seconds."""

PODS_PER_FAULT = 5
ROUND = 500
"""Pods after which all comes to rest, and what waits is compared with what a fresh engine would place."""

CONVERGENCE = PATIENCE
"""Seconds within which a healthy cluster must come to rest, however busy the machine is; it takes a few."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shorter pauses where they are not settings, and no log lines about what is meant to fail."""
    monkeypatch.setattr(kopf_settings, "FIRST_PAUSES", (0.05, 0.1, 0.2))
    monkeypatch.setattr(kopf_settings, "LAST_PAUSE", 0.4)
    monkeypatch.setattr(lister, "DEBOUNCE", 0.1)
    monkeypatch.setattr(binding_cycle, "ARRIVAL_SECONDS", 2.0)  # the embedded server delays a request by less
    monkeypatch.setattr(lister, "CLIENT", BackoffSettings(initial=0.1, max=0.5))
    loggers = [getLogger(name) for name in ("kopf", "koord_numa", "kopf.objects", "aiohttp.server")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(CRITICAL)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


class ReplicaPair:
    """Two schedulers of which one leads; those that end are replaced."""

    def __init__(self, kubeconfig: Path, dice: Random) -> None:
        self._kubeconfig = kubeconfig
        self._dice = dice
        self._count = 0
        self.past: list[Replica] = []
        self.present = [self._new(), self._new()]

    async def disrupt(self) -> None:
        """
        Kill, stop and freeze replicas until cancelled; one that ended is replaced.

        Mostly once one has come to lead: where that takes longer than the pauses, none would ever bind a pod.
        """
        while True:
            await asyncio.sleep(self._dice.uniform(1.0, 3.0))
            while self._dice.random() < 0.8 and not await self._one_leads():  # noqa: ASYNC110  (in threads of their own)
                await asyncio.sleep(0.2)
            which = self._dice.randrange(len(self.present))
            replica = self.present[which]
            fate = self._dice.choice(("kill", "kill", "stop", "freeze", "freeze"))
            if fate == "freeze":
                replica.freeze(self._dice.uniform(0.5, 3.0))
                continue
            replica.kill() if fate == "kill" else replica.stop()
            self.past.append(replica)
            self.present[which] = self._new()

    async def _one_leads(self) -> bool:
        return any([await replica.ask(_leads, False) for replica in self.present])

    async def end(self) -> None:
        """Stop all of them."""
        for replica in self.present:
            replica.stop()
        await asyncio.gather(*(replica.join() for replica in (*self.past, *self.present)))

    @property
    def errors(self) -> list[str]:
        """Return the errors that ended a scheduler."""
        return [f"{replica.identity}: {error}" for replica in (*self.past, *self.present) for error in replica.errors]

    def _new(self) -> Replica:
        self._count += 1
        return Replica(SETTINGS, self._kubeconfig, f"replica-{self._count}")


@contextmanager
def watched(server: ApiServer, churn: Churn) -> Iterator[None]:
    subscription = server.store.subscribe("pods", churn.observe)
    try:
        yield
    finally:
        subscription.cancel()


async def unsettled(server: ApiServer, replicas: ReplicaPair) -> list[str]:
    """Return the reasons why the cluster is not at rest: pods that fit and wait, pods without a reason, wrong ledgers."""
    objects = Objects.of(server.store)

    def judge() -> tuple[Scheduler, dict[str, str]]:
        true = rebuilt(objects, SETTINGS)
        return true, placeable(true, objects)

    # In a thread: on a busy machine it takes seconds, in which the API server of this event loop would answer no one.
    true, waiting = await asyncio.to_thread(judge)
    found = [f"{name} fits on {node} and waits" for name, node in waiting.items()]
    found += silent(server.store)
    for replica in replicas.present:
        believed, wrong = await replica.ask(_believed, UNKNOWN)
        lines = [*wrong, *differences(believed, ledgers(true))]
        found += [f"{replica.identity}: {line}" for line in lines]
    return found


async def never_at_rest(server: ApiServer, replicas: ReplicaPair, left: list[str]) -> str:
    """Describe a cluster that does not come to rest, and what the schedulers know and do."""
    waiting = [raw["metadata"]["name"] for raw in server.store.list("pods", fields="spec.nodeName=")]
    return "\n".join([*replicas.errors, *left[:20], "", await diagnosis(server, replicas.present, waiting)])


async def unhurried(look: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """Call ``look`` after a pause that leaves most of a busy machine to the schedulers under test."""
    begun = monotonic()
    found = await look()
    await asyncio.sleep(max(0.2, 3 * (monotonic() - begun)) if found else 0)
    return found


UNKNOWN: Final[tuple[Ledgers, list[str]]] = ({"": {}}, [])
"""The state of a scheduler that has not started."""


def _leads(runtime: Runtime) -> bool:
    return runtime.scheduler.ready and runtime.lease.fresh()


def _believed(runtime: Runtime) -> tuple[Ledgers, list[str]]:
    return ledgers(runtime.scheduler), unbalanced(runtime.scheduler)


def tally(rack: Fleet) -> dict[str, int]:
    """Count, per resource, the pods that hold some of it on a node."""
    return Counter(
        resource
        for entry in rack.history.entries
        for resource in {*(claim.resource for claim in entry.held.claims), *(["cpus"] if entry.held.cpus else [])}
    )


@dataclass(slots=True)
class Chaos:
    """One run: a cluster, what happens to it, and the schedulers."""

    cluster: World
    churn: Churn
    storm: Storm
    replicas: ReplicaPair

    async def round(self, pods: int, faults: int) -> list[str]:
        """
        Act until so many pods have been created and so many faults have struck, counted from the beginning, then calm down.

        Returns what is still wrong when all should be at rest: among it, pods that fit by the word of a fresh engine.
        """
        disruption = asyncio.create_task(self.replicas.disrupt())
        try:
            await asyncio.gather(self.churn.go_on(pods), self.storm.inject(faults))
        except TimeoutError:
            return ["the schedulers do not keep up with the pods that are created"]
        finally:
            disruption.cancel()
        self.cluster.server.faults.clear()
        self.churn.calm()
        left = ["not looked at"]
        with suppress(TimeoutError):
            async with asyncio.timeout(CONVERGENCE):
                # A scheduler that has ended in error never settles anything.
                while left and not self.replicas.errors:
                    self.cluster.rack.publish()
                    left = await unhurried(lambda: unsettled(self.cluster.server, self.replicas))
        return left


async def test_chaos(chaos_seed: int, chaos_pods: int, tmp_path: Path) -> None:
    rounds = max(1, chaos_pods // ROUND)
    print(f"chaos seed {chaos_seed}, {chaos_pods} pods in {rounds} rounds")
    async with world(tmp_path, MACHINES) as cluster:
        churn = Churn(cluster.server, cluster.rack, Random(chaos_seed))
        storm = Storm(cluster.server, Random(chaos_seed + 1))
        replicas = ReplicaPair(cluster.kubeconfig, Random(chaos_seed + 2))
        chaos = Chaos(cluster, churn, storm, replicas)
        try:
            with watched(cluster.server, churn):
                for number in range(1, rounds + 1):
                    left = await chaos.round(
                        chaos_pods * number // rounds, chaos_pods // PODS_PER_FAULT * number // rounds
                    )
                    if left:
                        found = await never_at_rest(cluster.server, replicas, left)
                        pytest.fail(f"seed {chaos_seed} never comes to rest in round {number}:\n{found}")
        finally:
            await replicas.end()
        bound = len(churn.nodes_of)
        held = tally(cluster.rack)
        print(f"{churn.created} pods, {bound} bound, {storm.hits} faults of {len(storm.kinds)} kinds, held {held}")
        assert broken(cluster.rack, churn.nodes_of) == []
        if replicas.errors:
            pytest.fail("\n".join(replicas.errors))
        assert bound > churn.created // 3
        assert {"cpus", "memory", GPU, "hugepages-2Mi", "hugepages-1Gi"} <= held.keys()
