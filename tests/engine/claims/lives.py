"""Random lives of a cluster with claims: pods come, go and preempt, and taint rules change in between; what may never happen is checked."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from koord_numa.core.claims.cpus import cpus_of
from koord_numa.core.claims.inventory import Device
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.claims import Allocation, DeviceId, DeviceUsage, PodResourceClaim
from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.ports import DELETED
from koord_numa.wire.resource_claims import parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice, parse_taint_rule
from tests.core.claims.test_taint_rules import rule
from tests.core.claims.worlds import cel, claim_object, device, device_class, request
from tests.engine.claims.claim_server import FakeClaimWriter as ClaimServer
from tests.engine.preemption.world import leaves
from tests.engine.world import World, make_node, make_pod, make_world

NODES: Final = ("node-0", "node-1")
UNITS: Final = 8
"""Units of the counter that the partitions of one card share."""
SIZE: Final = 10
"""Capacity of a link that pods share."""
BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})
Json = dict[str, Any]


def slices_of(node: str) -> Iterator[Json]:
    """Three GPUs, a partitioned card, a shared link and the CPUs of one machine."""
    near = {"near": {"ints": [0, 1]}}
    yield _slice(node, "gpu", [device(f"gpu-{n}", attributes=near if n == 1 else {"near": n // 2}) for n in range(3)])
    parts = {"full": 8, "half-0": 4, "half-1": 4, "quarter": 2}
    card = [device(name, consumes={"units": str(units)}) for name, units in parts.items()]
    counters = [{"name": "set", "counters": {"units": {"value": str(UNITS)}}}]
    yield _slice(node, "mig", card, 2)
    yield _slice(node, "mig", [], 2, sharedCounters=counters)
    yield _slice(node, "link", [device("link", capacity={"size": str(SIZE)}, allowMultipleAllocations=True)])
    ids = {"dra.cpu/numCPUs": 8, "dra.cpu/cpuIDs": "0-7", "dra.cpu/smtLayout": "0-7>4"}
    cpus = device("cpudevmachine", attributes=ids, capacity={"dra.cpu/cpu": "8"}, allowMultipleAllocations=True)
    yield _slice(node, "dra.cpu", [cpus])


def _slice(node: str, driver: str, devices: list[Json], count: int = 1, **more: Any) -> Json:
    pool = {"name": node, "generation": 1, "resourceSliceCount": count}
    name = f"{node}-{driver}-{len(devices)}"
    return {
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices, **more},
    }


NEAR: Final = {"matchAttribute": "gpu/near"}
APART: Final = {"distinctAttribute": "gpu/near"}


def any_claim(dice: Random, name: str) -> Json:
    """A claim for devices of one or two kinds."""
    tolerations = dice.choice([[], [], [{"key": "broken", "operator": "Exists"}]])
    kinds: list[tuple[list[Json], list[Json]]] = [
        ([request("r", "gpu", tolerations=tolerations)], []),
        ([request("r", "gpu", count=2)], [dice.choice([NEAR, APART])]),
        ([request("r", "gpu", allocationMode="All", tolerations=tolerations)], []),
        ([request("r", "mig")], []),
        ([request("r", "link", capacity={"requests": {"size": str(dice.randint(1, 6))}})], []),
        ([request("r", "gpu"), request("q", "mig", tolerations=tolerations)], []),
        ([request("r", "dra.cpu", capacity={"requests": {"dra.cpu/cpu": str(dice.choice([2, 4]))}})], []),
        ([_either(tolerations)], []),
        ([request("r", "gpu", adminAccess=True, tolerations=tolerations)], []),
    ]
    requests, constraints = dice.choice(kinds)
    return claim_object(*requests, name=name, constraints=constraints)


def _either(tolerations: list[Json]) -> Json:
    full = {"name": "full", "deviceClassName": "mig", "selectors": [cel("false")]}
    part = {"name": "part", "deviceClassName": "mig"}
    gpu = {"name": "gpu", "deviceClassName": "gpu", "tolerations": tolerations}
    return {"name": "r", "firstAvailable": [full, part, gpu]}


SELECTORS: Final[tuple[Json | None, ...]] = (
    None,
    {},
    {"device": "gpu-0"},
    {"driver": "gpu"},
    {"pool": "node-0"},
    {"driver": "mig", "device": "full"},
    {"driver": "gpu", "pool": "node-1"},
    {"driver": "gpu", "pool": "node-1", "device": "gpu-1"},
    {"device": "none"},
)


@dataclass
class Life:
    """A cluster, and the rules of the moment, by name."""

    dice: Random
    world: World = field(init=False)
    rules: dict[str, tuple[Json | None, str]] = field(default_factory=dict)
    devices: dict[DeviceId, Device] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)
    placed: int = 0
    _allocations: dict[str, Allocation] = field(default_factory=dict)  # by uid of the claim
    _created: int = 0
    _seen: int = 0  # calls of the server

    def __post_init__(self) -> None:
        server = ClaimServer(ClaimLister(lambda: None, lambda _: None))
        self.world = make_world(*(make_node(name) for name in NODES), claim_writer=server)
        claims = server.lister = self.claims
        for node in NODES:
            for raw in slices_of(node):
                parts = parse_resource_slice(raw).parts
                assert parts is not None
                claims.observe_slice(None, parts)
                self.devices.update({it.id: it for it in parts.devices})
        claims.replace_classes([device_class(name) for name in ("gpu", "mig", "link", "dra.cpu")])
        claims.synced()
        self.world.engine.handlers.budgets.replace([])

    @property
    def claims(self) -> ClaimLister:
        """Return the claims that the engine knows."""
        return self.world.engine.claims

    async def go_on(self, steps: int) -> None:
        """Act so often, and check after each act."""
        for _ in range(steps):
            self.dice.choice([self._come, self._come, self._go, self._go, self._change_rule, self._time])()
            await self._settle()
            self.check()

    async def end(self) -> None:
        """All pods go, and so do the rules: nothing is held."""
        while any(self.world.server.pods):
            self._leave(next(iter(self.world.server.pods)))
            await self._settle()
        assert self.claims.usage == DeviceUsage()
        assert not self.claims.assumed
        assert not any(self.claims.cpus_held(node) for node in NODES)

    # What happens.

    def _come(self) -> None:
        self._created += 1
        name = f"p{self._created}"
        raw = any_claim(self.dice, f"c-{name}")
        self.claims.observe_claim("ADDED", replace(parse_resource_claim(raw), version="1", protected=True))
        pod = make_pod(name, cpu=500, created=float(self._created))
        priority = self.dice.choice([0, 0, 5, 10])
        pod = replace(
            pod,
            request=replace(pod.request, priority=priority),
            resource_claims=(PodResourceClaim("c", f"c-{name}"),),
        )
        self.world.waits(pod)

    def _go(self) -> None:
        if pods := list(self.world.server.pods):
            # Evicted pods go first, as a rule.
            self._leave(self.evicted.pop(0) if self.evicted and self.dice.random() < 0.8 else self.dice.choice(pods))

    def _leave(self, uid: str) -> None:
        """The pod goes; its claim loses its devices at once or, where the controller is late, is deleted with a change before."""
        if uid not in self.world.server.pods:
            return
        self.evicted = [each for each in self.evicted if each != uid]
        pod = self.world.server.pods[uid]
        if pod.node:
            leaves(self.world, pod.key.name)
        else:
            self.world.engine.handlers.pending_pods.observe(DELETED, self.world.server.pods.pop(uid))
        claim = self.claims.claim(("default", f"c-{pod.key.name}"))
        assert claim is not None
        if self.dice.random() < 0.5:
            version = str(int(claim.version) + 1)
            self.claims.observe_claim("MODIFIED", replace(claim, version=version, allocation=None, reserved_for=()))
        self.claims.observe_claim(DELETED, claim)
        self._allocations.pop(claim.uid, None)

    def _change_rule(self) -> None:
        name = f"r{self.dice.randrange(3)}"
        if name in self.rules and self.dice.random() < 0.5:
            self.claims.observe_taint_rule(DELETED, parse_taint_rule(rule(self.rules.pop(name)[0], name=name)))
            return
        # Also over a rule that is there: it changes.
        selector, effect = self.dice.choice(SELECTORS), self.dice.choice(["None", "NoSchedule", "NoExecute", "Later"])
        self.rules[name] = (selector, effect)
        self.claims.observe_taint_rule("MODIFIED", parse_taint_rule(rule(selector, name=name, effect=effect)))
        if effect == "NoExecute":
            self._evict_tainted()

    def _evict_tainted(self) -> None:
        """The device-taint-eviction controller: pods with devices of this taint that they do not tolerate are deleted."""
        for pod in list(self.world.server.pods.values()):
            claim = self.claims.claim(("default", f"c-{pod.key.name}"))
            results = claim.allocation.results if claim is not None and claim.allocation is not None else ()
            if pod.node and any(not it.tolerations and self._effects(it.device) & {"NoExecute"} for it in results):
                self._leave(pod.key.uid)

    def _time(self) -> None:
        self.world.clock.now += 400
        self.world.engine.preemption.look_again()

    async def _settle(self) -> None:
        world = self.world
        await world.settle()
        await world.engine.preemption.work()
        await world.settle()
        calls = world.server.calls[self._seen :]
        self._seen = len(world.server.calls)
        self.evicted += [f"uid-{call.split()[1]}" for call in calls if call.startswith("evict ")]
        for uid, assumption in list(world.engine.cache.assumed.items()):
            pod = replace(world.server.pods[uid], assignment=assumption.placement.assignment, started=True)
            world.server.pods[uid] = pod
            world.engine.handlers.bound_pods.observe("MODIFIED", pod)
            self._check_new(pod)

    # What holds.

    def _effects(self, device: DeviceId) -> set[str]:
        """The effects of the rules of the moment, by an own reading of the API's comments."""
        fields = {"driver": device.driver, "pool": device.pool, "device": device.device}
        return {
            effect
            for selector, effect in self.rules.values()
            if selector is not None and all(fields[key] == value for key, value in selector.items())
        }

    def _check_new(self, pod: Pod) -> None:
        """A new allocation is on the node of its pod, and no rule of the moment forbids its devices."""
        self.placed += 1
        claim = self.claims.claim(("default", f"c-{pod.key.name}"))
        assert claim is not None
        assert claim.allocation is not None
        for result in claim.allocation.results:
            assert result.device.pool == pod.node
            assert result.tolerations or not self._effects(result.device) & BLOCKING
        self._allocations[claim.uid] = claim.allocation

    def check(self) -> None:
        """No device or CPU twice, counters and capacities never negative, and the account is that of the claims."""
        held = [it.allocation for it in self.claims.claims.values() if it.allocation is not None]
        kept = [allocation for uid in self.world.server.pods for allocation in self.claims.kept_for(uid)]
        usage = DeviceUsage()
        for allocation in (*held, *kept):
            usage.add(allocation)
        assert self.claims.usage == usage
        results = [it for allocation in held for it in allocation.results if not it.admin_access]
        assert max(Counter(it.device for it in results if not it.share_id).values(), default=0) <= 1
        units: Counter[str] = Counter()
        shared: Counter[DeviceId] = Counter()
        for it in results:
            for _, amounts in self.devices[it.device].consumes:
                units[it.device.pool] += amounts["units"]
            shared[it.device] += sum(amount for _, amount in it.consumed)
        assert max(units.values(), default=0) <= UNITS * 10**9
        for identity, amount in shared.items():
            assert amount <= sum(capacity.value for capacity in self.devices[identity].capacity.values())
        for node in NODES:
            cpus = [cpus_of(it) for it in held if any(result.device.pool == node for result in it.results)]
            assert len(CpuSet.of(cpu for each in cpus for cpu in each)) == sum(map(len, cpus))
        assert not self.world.engine.handle.quarantine.counts


def live(seed: int, steps: int) -> Life:
    """A whole life."""

    async def lived() -> Life:
        life = Life(Random(seed))
        await life.go_on(steps)
        await life.end()
        return life

    return asyncio.run(lived())
