"""Victims of a group of pods: NUMA nodes, priorities, budgets, and gangs that are disrupted together."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.constraints import DisruptionBudget
from koord_numa.core.objects.gangs import Dialect, GangKey
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.preempt.dry_run import PreemptionNode
from koord_numa.core.preempt.groups import GroupCandidate, GroupEvictions, Preemptor
from koord_numa.core.preempt.victims import select_victims_on_node, still_right
from koord_numa.core.scheduling.gangs import Group, Member
from koord_numa.core.value_objects import replace
from tests.core.preempt.preemption_nodes import ask, budget, kubelet_site, owned_site, request, running, terms
from tests.steps import finished
from tests.tables import each_row

GANG = GangKey(Dialect.KUBERNETES, "default", "gang")
Cluster = dict[str, PreemptionNode]


def cluster(*, units: Sequence[tuple[str, ...]] = (), **pods: Sequence[Pod]) -> Cluster:
    """Nodes of two NUMA nodes with four CPUs each, by name, with these pods; ``units`` are names of pods that are disrupted together."""
    there = {name: [replace(pod, node=name) for pod in some] for name, some in pods.items()}
    by_name = {pod.key.name: pod for some in there.values() for pod in some}
    unit_of = {name: tuple(by_name[it] for it in unit) for unit in units for name in unit}
    return {
        name: owned_site(
            *some, name=name, units={it.key.uid: unit_of[it.key.uid] for it in some if it.key.uid in unit_of}
        )
        for name, some in there.items()
    }


def evictions(
    nodes: Cluster, sizes: Sequence[int], budgets: Sequence[DisruptionBudget] = ()
) -> tuple[GroupEvictions, Group]:
    """A group with priority 10 whose members need this many CPUs of one NUMA node."""
    asks = {size: ask(size, 10) for size in set(sizes)}
    preemptors, members = {}, []
    for number, size in enumerate(sizes):
        uid = f"m{number}"
        pod = Pod(PodKey("default", uid, uid), request(size, 10, numa="SingleNUMANode"))
        preemptors[uid] = Preemptor(pod, asks[size], terms(*budgets))
        members.append(Member(uid, GANG, size, (size,)))
    return GroupEvictions(nodes, preemptors), Group(tuple(members), {GANG: len(sizes)})


def find(nodes: Cluster, sizes: Sequence[int], budgets: Sequence[DisruptionBudget] = ()) -> GroupCandidate | None:
    plan, group = evictions(nodes, sizes, budgets)
    return finished(plan.find(group))


def victims(nodes: Cluster, sizes: Sequence[int], budgets: Sequence[DisruptionBudget] = ()) -> list[str] | None:
    found = find(nodes, sizes, budgets)
    return None if found is None else sorted(pod.key.name for pod in found.victims)


A0, A1 = running("a0", "0-3"), running("a1", "4-7", numa=1)
B0, B1 = running("b0", "0-3"), running("b1", "4-7", numa=1)


def of(pod: Pod, priority: int) -> Pod:
    return replace(pod, request=replace(pod.request, priority=priority))


HALVES = (running("x", "0-1"), running("y", "4-5", numa=1), running("z", "6-7", 20, numa=1))

SITUATIONS = {
    "as few as needed": (cluster(a=(A0, A1), b=(B0, B1)), (4, 4), ["a0", "a1"]),
    "several members fit beside one pod": (cluster(a=(A0, of(A1, 10))), (2, 2), ["a0"]),
    "the lowest priority, on two nodes": (cluster(a=(A0, of(A1, 5)), b=(B0, of(B1, 5))), (4, 4), ["a0", "b0"]),
    "free NUMA nodes first": (cluster(a=(A0,), b=(B0, B1)), (4, 4), ["a0"]),
    "amounts of two NUMA nodes are no room": (cluster(a=HALVES), (4, 3), None),
    "equal priority stays": (cluster(a=(of(A0, 10), A1)), (4, 4), None),
    "a gang as one": (cluster(a=(A0,), b=(B0,), units=[("a0", "b0")]), (4, 4, 4), ["a0", "b0"]),
    "a gang with an important pod stays": (
        cluster(a=(A0, of(A1, 10)), b=(of(B0, 10), of(B1, 10)), units=[("a0", "b0")]),
        (4,),
        None,
    ),
    "a pod alone rather than a more important gang": (
        cluster(a=(A0, of(A1, 10)), b=(of(B0, 5), of(B1, 5)), units=[("b0", "b1")]),
        (4,),
        ["a0"],
    ),
    "terminating pods are awaited": (cluster(a=(replace(A0, deleting=True), A1), b=(B0, B1)), (4,), []),
    "nothing helps": (cluster(a=(A0, A1)), (4, 4, 4), None),
    "too large for every NUMA node": (cluster(a=(A0, A1)), (5,), None),
}


@each_row(("nodes", "sizes", "gone"), list(SITUATIONS.values()), ids=list(SITUATIONS))
def test_victims(nodes: Cluster, sizes: tuple[int, ...], gone: list[str] | None) -> None:
    assert victims(nodes, sizes) == gone


BUDGETS = {
    "protected pods stay": ((budget("pdb", 0, "a0", "a1"),), ["b0", "b1"], 0),
    "as many as a budget allows": ((budget("pdb", 2, "a0", "a1", "b0", "b1"),), ["a0", "a1"], 0),
    "two budgets of one each": ((budget("p", 1, "a0", "a1"), budget("q", 1, "b0", "b1")), ["a1", "b1"], 0),
    "as the last resort": ((budget("pdb", 1, "a0", "a1", "b0", "b1"),), ["a0", "a1"], 1),
}


@each_row(("budgets", "gone", "violations"), list(BUDGETS.values()), ids=list(BUDGETS))
def test_budgets(budgets: tuple[DisruptionBudget, ...], gone: list[str], violations: int) -> None:
    found = find(cluster(a=(A0, A1), b=(B0, B1)), (4, 4), budgets)
    assert found is not None
    assert (sorted(pod.key.name for pod in found.victims), found.violations) == (gone, violations)


def test_a_kubelet_admits_the_members() -> None:
    """The second NUMA node of the kubelet has 4 CPUs free, and the pod on the first has 8: only both members beside each other fit."""
    site = kubelet_site(running("low", "0-7"), running("high", "8-11", 20, numa=1), used=((8, 1), (4, 1)))
    assert victims({"node": site}, (4, 4)) == ["low"]
    assert victims({"node": site}, (4, 4, 4)) == ["low"]
    assert victims({"node": site}, (6, 6)) is None


def test_a_single_pod_evicts_a_gang_as_one() -> None:
    nodes = cluster(a=(A0, of(A1, 10)), b=(B0, of(B1, 10)), units=[("a0", "b0")])
    found = select_victims_on_node(ask(4, 10), nodes["a"], terms())
    assert found is not None
    assert [pod.key.name for pod in found.victims] == ["a0", "b0"]
    assert found.awaited == {"a0"}
    assert still_right(ask(4, 10), nodes["a"], terms(), found)
    more = cluster(a=(A0, of(A1, 10)), b=(B0, B1), units=[("a0", "b0", "b1")])
    assert not still_right(ask(4, 10), more["a"], terms(), found)  # the gang has another member now
    important = cluster(a=(A0, of(A1, 10)), b=(of(B0, 10),), units=[("a0", "b0")])
    assert select_victims_on_node(ask(4, 10), important["a"], terms()) is None


def test_budgets_count_all_pods_of_a_gang() -> None:
    nodes = cluster(a=(A0, of(A1, 10)), b=(B0, of(B1, 10)), units=[("a0", "b0")])
    found = select_victims_on_node(ask(4, 10), nodes["a"], terms(budget("pdb", 1, "a0", "b0")))
    assert found is not None
    assert found.violations == 1


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Cluster, tuple[int, ...]]:
    """Up to three nodes with pods of one NUMA node each, some of them in gangs, and the sizes of a group."""
    there: dict[str, list[Pod]] = {}
    for name in "abc"[: draw(st.integers(1, 3))]:
        there[name] = []
        for numa in (0, 1):
            first = 4 * numa
            for number, cpus in enumerate(draw(st.sampled_from(((), (4,), (2, 2), (1, 3), (2,))))):
                pod = running(
                    f"{name}{numa}{number}",
                    f"{first}-{first + cpus - 1}",
                    draw(st.sampled_from((0, 0, 5, 10))),
                    numa=numa,
                    deleting=draw(st.integers(0, 9)) == 0,
                )
                first += cpus
                there[name].append(pod)
    names = [pod.key.name for some in there.values() for pod in some if not pod.deleting]
    unit = draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) if names else []
    units = [tuple(unit)] if len(unit) > 1 else []
    sizes = draw(st.lists(st.sampled_from((1, 2, 2, 4)), min_size=1, max_size=5))
    return cluster(**there, units=units), tuple(sizes)


def without(nodes: Cluster, gone: set[str]) -> Cluster:
    return {
        name: owned_site(*(pod for uid, pod in node.pods.items() if uid not in gone), name=name)
        for name, node in nodes.items()
    }


def fits(nodes: Cluster, sizes: tuple[int, ...]) -> bool:
    """Exhaustive: a member of so many CPUs goes to any NUMA node with as many free."""
    free = []
    for node in nodes.values():
        for numa in (0, 1):
            held = [
                pod for pod in node.pods.values() if pod.assignment is not None and pod.assignment.numa[0][0] == numa
            ]
            free.append(4 - sum(len(pod.assignment.cpus) for pod in held if pod.assignment is not None))

    def rest(left: tuple[int, ...]) -> bool:
        if not left:
            return True
        for index, room in enumerate(free):
            if room >= left[0]:
                free[index] -= left[0]
                found = rest(left[1:])
                free[index] += left[0]
                if found:
                    return True
        return False

    return rest(tuple(sorted(sizes, reverse=True)))


@given(clusters())
def test_the_group_fits_only_without_all_of_the_victims(found: tuple[Cluster, tuple[int, ...]]) -> None:
    nodes, sizes = found
    plan, group = evictions(nodes, sizes)
    candidate = finished(plan.find(group))
    pods = {uid: pod for node in nodes.values() for uid, pod in node.pods.items()}
    lower = {uid for uid, pod in pods.items() if pod.request.priority < 10}
    kept = {
        uid
        for node in nodes.values()
        for uid, unit in node.units.items()
        if any(it.request.priority >= 10 for it in unit)
    }
    if candidate is None:
        assert fits(nodes, sizes) or not fits(without(nodes, lower - kept), sizes)
        return
    gone = set().union(*candidate.awaited.values()) | {pod.key.uid for pod in candidate.victims}
    assert fits(without(nodes, gone), sizes)
    assert {pod.key.uid for pod in candidate.victims} <= lower - kept
    for node in nodes.values():  # all of a gang, or none
        for unit in node.units.values():
            assert len({pod.key.uid in gone for pod in unit}) == 1
    again, _ = evictions({name: nodes[name] for name in candidate.awaited}, sizes)
    assert again.confirms(candidate)
