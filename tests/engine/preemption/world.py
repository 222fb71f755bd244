"""Nodes full of pods, an engine that makes room on them, and what it asked of the API server."""

from collections.abc import Callable

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Assignment, NumaSpec, Pod
from koord_numa.core.objects.vocabulary import NumaPolicy, QosClass
from koord_numa.core.value_objects import replace
from tests.engine.world import GIB, World, bound, make_node, make_pod, make_topology, make_world


def important(name: str, cpu: int = 4, priority: int = 10, **changes: object) -> Pod:
    """A pod that wants so many CPUs of its own on one NUMA node."""
    pod = make_pod(name, cpu=cpu * 1000)
    numa = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE)
    request = replace(pod.request, priority=priority, qos=QosClass.LSR, numa=numa)
    return replace(pod, request=request, **changes)  # type: ignore[arg-type]  # changes are named fields


def running(name: str, cpus: str, node: str = "node", priority: int = 0, **changes: object) -> Pod:
    """A pod that runs on these CPUs: 0 to 3 are on NUMA node 0, 4 to 7 on NUMA node 1."""
    owned = CpuSet.parse(cpus)
    pod = make_pod(name, cpu=1000 * len(owned))
    given = Assignment(owned, ((min(owned) // 4, {"cpu": 1000 * len(owned), "memory": GIB}),))
    request = replace(pod.request, priority=priority, qos=QosClass.LSR)
    return bound(replace(pod, request=request, assignment=given, started=True, phase="Running"), node, **changes)


def crowded(*pods: Pod, nodes: tuple[str, ...] = ("node",), settings: str = "", budgets: bool = True) -> World:
    """Nodes of two NUMA nodes with four CPUs each, and these pods on them."""
    world = make_world(*(make_node(name) for name in nodes), settings=settings)
    for name in nodes:
        world.engine.handlers.topologies.observe("ADDED", make_topology(name))
    for pod in pods:
        world.server.pods[pod.key.uid] = pod
        world.engine.handlers.bound_pods.observe("ADDED", pod)
    if budgets:
        world.engine.handlers.budgets.replace([])
    return world


async def make_room(world: World) -> list[str]:
    """Try who waits, make room for pods that could not be placed, and try them again, twice. Returns ``wrote``."""
    for _ in range(2):
        await world.settle()
        await world.engine.preemption.work()
    await world.settle()
    return wrote(world)


def leaves(world: World, *names: str) -> None:
    """These pods are gone for good."""
    for name in names:
        gone = world.server.pods.pop(f"uid-{name}")
        world.engine.handlers.bound_pods.observe("DELETED", gone)


def wrote(world: World) -> list[str]:
    """Return the writes to the API server, without conditions."""
    return [call for call in world.server.calls if not call.startswith("condition")]


def said(world: World, name: str) -> str:
    """The last thing that was said about a pod."""
    return [message for who, _, message in world.diary.events if who == name][-1]


FULL = (running("a", "0-1", priority=5), running("b", "2-3"), running("c", "4-5", priority=1), running("d", "6-7"))


def once(at: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Something happens at this call, the first time."""
    done: list[str] = []

    def happen(call: str) -> None:
        if call == at and not done:
            done.append(call)
            act()

    return happen
