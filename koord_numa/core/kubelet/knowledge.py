"""What is known of a kubelet-owned node, from which evidence, and the bounds of its free amounts: for people, it decides nothing."""

from collections.abc import Iterator
from dataclasses import dataclass

from koord_numa.core.explain import amounts_text
from koord_numa.core.kubelet.state import free_on
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.resources import ResourceList


@dataclass(frozen=True, slots=True)
class FreeRange:
    """What one NUMA node has free at least and at most, in our units, over every state that is possible."""

    numa: int
    lower: ResourceList
    upper: ResourceList

    def __str__(self) -> str:
        """``NUMA 0: 4 CPUs, 8Gi memory``, or ``NUMA 0: 4 CPUs .. 8 CPUs`` where the states differ."""
        low, high = amounts_text(self.lower), amounts_text(self.upper)
        return f"NUMA {self.numa}: {low or 'nothing'}" + ("" if low == high else f" .. {high}")


@dataclass(frozen=True, slots=True)
class KubeletKnowledge:
    """``states`` is how many states are possible, ``evidence`` sentences about where that and the kubelet's options are known from."""

    states: int
    evidence: tuple[str, ...]
    free: tuple[FreeRange, ...]

    @property
    def is_certain(self) -> bool:
        """Is there one state?"""
        return self.states == 1 and all(one.lower == one.upper for one in self.free)


def known_of(view: KubeletView) -> KubeletKnowledge:
    """What decisions on this node rest on."""
    states = [one.state for one in view.hypotheses]
    # ``upper`` has the most room that there may be, so that the range covers it too.
    if view.upper is not None:
        states.append(view.upper.state)
    node = view.state.node
    free = []
    for numa in node.machine.numa_ids:
        found = [free_on(node, state.managers, numa) for state in states]
        # A resource may be absent from a state where none of it is free.
        names = sorted(set().union(*found))
        free.append(
            FreeRange(
                numa,
                {name: min(one.get(name, 0) for one in found) for name in names},
                {name: max(one.get(name, 0) for one in found) for name in names},
            )
        )
    return KubeletKnowledge(len(states), tuple(_evidence(view)), tuple(free))


def _evidence(view: KubeletView) -> Iterator[str]:
    if view.problem:
        yield view.problem
    if view.followed:
        yield "every pod since the node was empty is replayed; verdicts and topologies have ruled out all other states"
    else:
        yield "the published amounts, less what they may not show yet: not every pod of the node is known from its start"
    published = None if view.frame is None else view.frame.topology.kubelet
    if published is not None and published.cpu_policy is not None:
        on = ", ".join(name for name, value in published.cpu_options.items() if value)
        yield f"CPU manager options are published or stated: {on or 'none is on'}"
    if view.cores.free is not None and view.cores.why:
        yield view.cores.why
    if view.explored:
        yield "a pod is on its way that finds out about an option"
    for option in sorted(view.found_on):
        yield f"the kubelet refused a pod that found out about {option}"
