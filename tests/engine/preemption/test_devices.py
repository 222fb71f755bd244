"""Preemption frees devices: whom a pod with claims displaces, when it goes to the node, and when no pod is displaced."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.claims import Allocation, DeviceId, DeviceResult, PodResourceClaim, ResourceClaim
from koord_numa.core.objects.constraints import DisruptionBudget, LabelSelector, Operator, Requirement
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Unschedulable
from koord_numa.core.preempt.victims import PreemptionCandidate
from koord_numa.core.value_objects import replace
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.ports import DELETED
from koord_numa.wire.resource_claims import parse_resource_claim
from koord_numa.wire.resource_slices import parse_resource_slice
from tests.core.claims.worlds import claim_object, device, device_class, request
from tests.engine.claims.claim_server import FakeClaimWriter as ClaimServer
from tests.engine.preemption.world import leaves, make_room, wrote
from tests.engine.world import World, bound, make_node, make_pod, make_world


def rack(*nodes: tuple[str, int], text: str = "") -> World:
    """Nodes of 8 CPUs with so many GPUs each, and the budgets listed."""
    server = ClaimServer(ClaimLister(lambda: None, lambda _: None))
    world = make_world(*(make_node(name) for name, _ in nodes), claim_writer=server, settings=text)
    claims = server.lister = world.engine.claims
    for name, gpus in nodes:
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        devices = [device(f"gpu-{number}") for number in range(gpus)]
        spec = {"driver": "gpu", "nodeName": name, "pool": pool, "devices": devices}
        parts = parse_resource_slice({"metadata": {"name": f"s-{name}"}, "spec": spec}).parts
        assert parts is not None
        claims.observe_slice(None, parts)
    claims.replace_classes([device_class("gpu")])
    claims.synced()
    world.engine.handlers.budgets.replace([])
    return world


def holds(world: World, claim: str, node: str, gpus: Iterable[int], *users: Pod, **changes: Any) -> ResourceClaim:
    """A claim that holds GPUs of the node for these pods."""
    results = tuple(DeviceResult("r", DeviceId("gpu", node, f"gpu-{number}")) for number in gpus)
    made = replace(
        parse_resource_claim(claim_object(request("r", "gpu", count=len(results)), name=claim)),
        version="1",
        allocation=Allocation(results),
        reserved_for=tuple(pod.key.uid for pod in users),
        protected=True,
        **changes,
    )
    world.engine.claims.observe_claim("ADDED", made)
    return made


def using(name: str, *claims: str, cpu: int = 1000, priority: int = 0, **changes: Any) -> Pod:
    """A pod with these claims."""
    pod = make_pod(name, cpu=cpu, **changes)
    entries = tuple(PodResourceClaim(claim, claim) for claim in claims)
    return replace(pod, request=replace(pod.request, priority=priority), resource_claims=entries)


def runs(world: World, pod: Pod, node: str = "node") -> Pod:
    """The pod is on the node."""
    there = bound(replace(pod, started=True, phase="Running"), node)
    world.server.pods[pod.key.uid] = there
    world.engine.handlers.bound_pods.observe("ADDED", there)
    return there


def wants(world: World, name: str, count: int = 1, priority: int = 10, cpu: int = 1000) -> Pod:
    """A pod waits that wants so many GPUs."""
    claim = claim_object(request("r", "gpu", count=count), name=f"of-{name}")
    world.engine.claims.observe_claim("ADDED", replace(parse_resource_claim(claim), version="1"))
    pod = using(name, f"of-{name}", cpu=cpu, priority=priority)
    world.waits(pod)
    return pod


def deallocated(world: World, claim: ResourceClaim) -> None:
    """kube-controller-manager has given the devices of the claim back."""
    world.engine.claims.observe_claim("MODIFIED", replace(claim, version="5", allocation=None, reserved_for=()))


def selector(app: str) -> LabelSelector:
    """Selects the pods of one app."""
    return LabelSelector((Requirement("app", Operator.IN, (app,)),))


async def test_its_user_is_evicted_and_the_pod_waits_for_the_claim() -> None:
    world = rack(("node", 1))
    user = runs(world, using("user", "c"))
    runs(world, using("idle"))
    claim = holds(world, "c", "node", [0], user)
    wants(world, "pod")
    await make_room(world)
    assert wrote(world) == ["nominate pod node", "evict user"]
    leaves(world, "user")
    await make_room(world)
    # The pod has left, and the claim still holds the device: no further pod is evicted.
    assert world.nodes_of()["pod"] == ""
    assert wrote(world)[-1] == "evict user"
    deallocated(world, claim)
    await make_room(world)
    assert world.nodes_of()["pod"] == "node"
    assert not world.engine.claims.kept_for("uid-pod")


async def test_a_claim_that_goes_with_its_pod_frees_its_devices() -> None:
    world = rack(("node", 1))
    user = runs(world, using("user", "c"))
    claim = holds(world, "c", "node", [0], user, owner="uid-user")
    wants(world, "pod")
    await make_room(world)
    world.engine.claims.observe_claim(DELETED, claim)
    leaves(world, "user")
    await make_room(world)
    assert world.nodes_of()["pod"] == "node"


async def test_a_claim_that_is_never_given_back_is_waited_for_so_long() -> None:
    world = rack(("node", 1), ("other", 1), text="preemption: {topologyPatienceSeconds: 60}")
    user = runs(world, using("user", "c"))
    holds(world, "c", "node", [0], user)
    later = runs(world, using("later", "d", priority=5), "other")
    holds(world, "d", "other", [0], later)
    wants(world, "pod")
    await make_room(world)
    leaves(world, "user")
    for seconds, evicted in ((30, ["user"]), (400, ["user", "later"])):
        world.clock.now += seconds
        world.engine.preemption.look_again()
        await make_room(world)
        assert [call.split()[1] for call in wrote(world) if call.startswith("evict")] == evicted


async def test_a_claim_that_another_pod_uses_by_now_is_not_waited_for() -> None:
    world = rack(("node", 1), ("other", 1))
    user = runs(world, using("user", "c"))
    claim = holds(world, "c", "node", [0], user)
    later = runs(world, using("later", "d", priority=5), "other")
    holds(world, "d", "other", [0], later)
    wants(world, "pod")
    await make_room(world)
    leaves(world, "user")
    heir = runs(world, using("heir", "c", priority=10))
    world.engine.claims.observe_claim("MODIFIED", replace(claim, version="2", reserved_for=(heir.key.uid,)))
    await make_room(world)
    world.engine.preemption.look_again()
    await make_room(world)
    assert [call.split()[1] for call in wrote(world) if call.startswith("evict")] == ["user", "later"]


NOBODY_HELPS = {
    "as important": {"priority": 10},
    "for a group": {"other_consumers": 1},
    "not deallocated": {"protected": False},
    "used elsewhere": {"elsewhere": True},
    "waited for": {"waiting": True},
    "too few": {"count": 2},
    "too few CPUs": {"cpu": 9000},
}


@pytest.mark.parametrize("case", NOBODY_HELPS.values(), ids=list(NOBODY_HELPS))
async def test_nobody_is_evicted_where_that_frees_no_device(case: dict[str, Any]) -> None:
    world = rack(("node", 1), ("other", 0))
    user = runs(world, using("user", "c", priority=case.get("priority", 0)))
    users = [user]
    if case.get("elsewhere"):
        users.append(runs(world, using("far", "c"), "other"))
    claim = holds(world, "c", "node", [0], *users)
    changes = {key: case[key] for key in ("other_consumers", "protected") if key in case}
    world.engine.claims.observe_claim("MODIFIED", replace(claim, version="2", **changes))
    if case.get("waiting"):
        # It may use the claim next, so that the claim keeps its device.
        world.waits(using("next", "c", cpu=64000, priority=1))
    wants(world, "pod", count=case.get("count", 1), cpu=case.get("cpu", 1000))
    await make_room(world)
    assert [call for call in wrote(world) if "nominate" in call or "evict" in call] == []


async def test_all_users_of_a_shared_claim_go() -> None:
    world = rack(("node", 2))
    users = [runs(world, using(name, "c")) for name in ("a", "b")]
    holds(world, "c", "node", [0, 1], *users)
    wants(world, "pod")
    await make_room(world)
    assert sorted(wrote(world)) == ["evict a", "evict b", "nominate pod node"]


async def test_a_second_pod_does_not_count_on_the_same_device() -> None:
    world = rack(("node", 2))
    users = [runs(world, using(name, f"c-{name}", priority=at)) for at, name in enumerate(("a", "b"))]
    claims = [holds(world, f"c-{pod.key.name}", "node", [at], pod) for at, pod in enumerate(users)]
    wants(world, "first")
    wants(world, "second")
    await make_room(world)
    assert sorted(wrote(world)) == ["evict a", "evict b", "nominate first node", "nominate second node"]
    for name, claim in zip(("a", "b"), claims, strict=True):
        leaves(world, name)
        deallocated(world, claim)
    await make_room(world)
    assert world.nodes_of() == {"first": "node", "second": "node"}


async def test_a_freed_device_is_kept_from_pods_of_lower_priority() -> None:
    world = rack(("node", 1))
    user = runs(world, using("user", "c"))
    claim = holds(world, "c", "node", [0], user)
    wants(world, "pod")
    await make_room(world)
    wants(world, "late", priority=5)
    leaves(world, "user")
    deallocated(world, claim)
    await make_room(world)
    assert world.nodes_of() == {"pod": "node", "late": ""}


async def test_budgets_are_honored() -> None:
    world = rack(("node", 2))
    for at, name in enumerate(("a", "b")):
        user = runs(world, using(name, f"c-{name}", priority=at, labels=(("app", name),)))
        holds(world, f"c-{name}", "node", [at], user)
    world.engine.handlers.budgets.replace([DisruptionBudget("default", "b", selector("a"))])
    wants(world, "pod")
    await make_room(world)
    # ``a`` has the lower priority, and its budget allows no eviction.
    assert wrote(world) == ["nominate pod node", "evict b"]


Drawn = tuple[int, int, tuple[int, ...], bool]
pods = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sets(st.integers(0, 3), max_size=2).map(tuple), st.booleans()),
    min_size=1,
    max_size=5,
)
"""Priority, CPUs, GPUs by number and whether a budget protects the pod. Pods that draw one GPU share its claim."""


def fits(world: World, there: Sequence[Pod], gone: Iterable[Pod], wanted: int, cpu: int) -> bool:
    """The rule in short: CPUs and GPUs that nobody holds any more."""
    away = {pod.key.uid for pod in gone}
    held = sum(pod.request.containers[0].requests["cpu"] for pod in there if pod.key.uid not in away)
    busy = {
        result.device.device
        for claim in world.engine.claims.claims.values()
        if claim.allocation is not None and not away.issuperset(claim.reserved_for)
        for result in claim.allocation.results
    }
    return (not cpu or held + cpu <= 8000) and 4 - len(busy) >= wanted


def plan(world: World, pod: Pod) -> PreemptionCandidate | None:
    """The room that would be made for the pod."""
    engine = world.engine
    request_class = engine.classes.of(pod)
    assert request_class is not None
    verdict = engine.handle.selector.decide(request_class)
    if not isinstance(verdict, Unschedulable):
        return None
    coroutine = engine.preemption.evaluator.plan(pod, request_class, verdict)
    try:
        while True:
            coroutine.send(None)
    except StopIteration as end:
        found: PreemptionCandidate | None = end.value
        return found


@given(pods, st.integers(1, 3), st.integers(0, 3), st.integers(1, 3))
def test_victims_are_found_where_any_suffice_and_all_are_needed(
    drawn: list[Drawn], priority: int, cpus: int, wanted: int
) -> None:
    world = rack(("node", 4))
    users: dict[int, list[Pod]] = {}
    there = []
    for at, (important, cpu, gpus, protected) in enumerate(drawn):
        names = [f"c-{gpu}" for gpu in gpus]
        labels = (("app", "protected"),) if protected else ()
        pod = runs(world, using(f"p{at}", *names, cpu=cpu * 1000, priority=important, labels=labels))
        there.append(pod)
        for gpu in gpus:
            users.setdefault(gpu, []).append(pod)
    for gpu, sharing in users.items():
        holds(world, f"c-{gpu}", "node", [gpu], *sharing)
    budget = DisruptionBudget("default", "b", selector("protected"))
    world.engine.handlers.budgets.replace([budget])
    pod = wants(world, "pod", count=wanted, priority=priority, cpu=cpus * 1000)
    found = plan(world, pod)
    lower = [each for each in there if each.request.priority < priority]
    subsets = [each for size in range(len(lower) + 1) for each in combinations(lower, size)]
    enough = [gone for gone in subsets if fits(world, there, gone, wanted, cpus * 1000)]
    if found is None:
        assert not enough or enough[0] == ()
        return
    assert () not in enough
    victims = [each.key.uid for each in found.victims]
    gone = [each for each in there if each.key.uid in victims]
    assert fits(world, there, gone, wanted, cpus * 1000)
    for spared in gone:
        assert not fits(world, there, [each for each in gone if each is not spared], wanted, cpus * 1000)
    unprotected = [each for each in lower if not each.labels]
    if fits(world, there, unprotected, wanted, cpus * 1000):
        assert found.violations == 0
    # The search has changed nothing.
    free = {f"gpu-{number}" for number in range(4)} - {it.device for it in world.engine.claims.usage.exclusive}
    assert free == {f"gpu-{number}" for number in range(4) if number not in users}
    assert {result.device.device for each in found.placement.allocations for result in each.results} <= free | {
        f"gpu-{number}" for number, sharing in users.items() if {each.key.uid for each in sharing} <= set(victims)
    }


async def test_a_finished_pod_keeps_no_device() -> None:
    """The ResourceClaim controller takes reservations of finished pods back (k/k#141276)."""
    world = rack(("node", 1))
    done, user = (using(name, "c") for name in ("done", "user"))
    runs(world, user)
    world.engine.handlers.bound_pods.observe("ADDED", bound(replace(done, phase="Succeeded"), "node"))
    holds(world, "c", "node", [0], done, user)
    wants(world, "pod")
    await make_room(world)
    assert wrote(world) == ["nominate pod node", "evict user"]
