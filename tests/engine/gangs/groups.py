"""Random groups on small clusters, and an exhaustive search that says whether a group fits."""

from random import Random

from koord_numa.core.objects.gangs import Dialect, GangKey
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import NumaSpec, Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope, NumaPolicy, QosClass
from koord_numa.core.scheduling.gangs import Group, Member
from koord_numa.core.value_objects import replace
from koord_numa.engine.gangs.trial import ClusterTrial
from tests.engine.world import GIB, World, bound, make_node, make_pod, make_topology, make_world

GANG = GangKey(Dialect.KUBERNETES, "default", "gang")


def kubelet_topology(
    node: str, numas: int, cpus: int, policy: KubeletPolicy = KubeletPolicy.SINGLE_NUMA_NODE
) -> NodeResourceTopology:
    """A static kubelet with so many CPUs on each NUMA node, all of them free."""
    amounts = {"cpu": cpus * 1000, "memory": 32 * GIB}
    zones = tuple(Zone(number, amounts, amounts, amounts) for number in range(numas))
    config = KubeletConfig(policy, KubeletScope.POD, cpu_policy="static", memory_policy="None")
    return NodeResourceTopology(
        node, CpuOwner.KUBELET, zones=zones, kubelet=config, node_uid=f"uid-{node}", resource_version="1"
    )


def random_world(dice: Random) -> World:
    """Two or three nodes: plain, scheduler-owned and kubelet-owned."""
    world = make_world()
    for number in range(dice.randint(2, 3)):
        name, kind = f"n{number}", dice.choice(("plain", "ours", "kubelet", "kubelet"))
        numas = 1 if kind == "plain" else 2
        cpus = dice.choice((4, 6, 8))
        world.engine.handlers.nodes.observe("ADDED", make_node(name, cpu=cpus * numas, memory=200))
        if kind == "ours":
            world.engine.handlers.topologies.observe("ADDED", make_topology(name, 1, 2, cpus // 2, memory=200))
        elif kind == "kubelet":
            world.engine.handlers.topologies.observe("ADDED", kubelet_topology(name, 2, cpus))
    return world


def fill(world: World, dice: Random) -> None:
    """Place up to four pods of other owners."""
    for number in range(dice.randint(0, 4)):
        pod = make_kind(f"b{number}", *dice.choice(((1, False), (2, False), (2, True), (3, True))))
        request_class = world.engine.handle.classes.of(pod)
        assert request_class is not None
        found = world.engine.handle.selector.choose(request_class)
        if found is not None:
            there = bound(pod, found.node, assignment=found.assignment, started=True)
            world.engine.handlers.bound_pods.observe("ADDED", there)


def random_members(dice: Random, *, equal: bool) -> list[Pod]:
    """Up to five pods of one to three kinds."""
    kinds = [_kind(dice) for _ in range(1 if equal else dice.randint(2, 3))]
    return [make_kind(f"m{number}", *dice.choice(kinds)) for number in range(dice.randint(2, 5))]


def _kind(dice: Random) -> tuple[int, bool]:
    return dice.choice((1, 2, 3, 4, 5, 6, 8)), dice.random() < 0.5


def make_kind(name: str, cpus: int, aligned: bool) -> Pod:
    """A pod with CPUs of its own, on one NUMA node if that is asked for."""
    pod = make_pod(name, cpu=cpus * 1000, memory=1)
    numa = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE) if aligned else NumaSpec()
    return replace(pod, request=replace(pod.request, qos=QosClass.LSR, numa=numa))


def group_of(world: World, pods: list[Pod], missing: int | None = None) -> tuple[ClusterTrial, Group]:
    """The pods as one gang."""
    trial = ClusterTrial(world.engine.handle, {pod.key.uid: pod for pod in pods})
    members = []
    for pod in pods:
        request_class = world.engine.handle.classes.of(pod)
        assert request_class is not None
        members.append(Member(pod.key.uid, GANG, request_class, (request_class.cpu,)))
    return trial, Group(tuple(members), {GANG: len(pods) if missing is None else missing})


def fits(trial: ClusterTrial, members: list[Member], nodes: list[str]) -> bool:
    """Return true if the members fit in some order on some nodes."""
    if not members:
        return True
    tried = set()
    for index, member in enumerate(members):
        if member.kind in tried:
            continue
        tried.add(member.kind)
        for node in nodes:
            placement = trial.choose(member, frozenset({node}))
            if not isinstance(placement, Placement):
                continue
            trial.assume(member, placement)
            found = fits(trial, members[:index] + members[index + 1 :], nodes)
            trial.undo(member)
            if found:
                return True
    return False
