"""
What it tells of shared devices that a pod came to a NUMA node, and not to a lower one where it would have had room otherwise.

Theory. Of single NUMA nodes that fit a kubelet takes the lowest. A lower one that has all else that is aligned together with the devices
was passed over because fewer devices near it were free than the pod needs: the others near it were in use. Where these can be no others
than certain ones, each of them is near it; and the only device of a pod is not near it, as it was free.

Example: pods hold two devices, each near NUMA node 0; two devices are near each NUMA node. A pod with one device comes to NUMA node 2, with
CPUs free on NUMA node 1: both devices in use are near NUMA node 1, too, and the pod's is not.
"""

from collections.abc import Sequence

from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.room import fits_on, together
from koord_numa.core.kubelet.sharing.bounds import held_reaches
from koord_numa.core.kubelet.sharing.layouts import settled_layout
from koord_numa.core.kubelet.sharing.reach import Reach
from koord_numa.core.kubelet.state import ContainerGrant
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletScope
from koord_numa.core.value_objects import ValueObject, replace


class _Unit(ValueObject, gc=False):
    """
    Containers of one pod that are aligned together to the NUMA node of the mask ``near``.

    They get ``count`` devices of one resource, and ``rest`` is all else that they ask for.
    """

    uid: str
    name: str
    count: int
    rest: ContainerDemand
    near: int


def with_passed_over(before: Hypothesis, after: Hypothesis, uid: str, request: PodRequest) -> Hypothesis:
    """``after``, in which the kubelet has admitted this pod, with what is known of devices from where it did not put it."""
    if not before.sharing or uid not in after.reach:
        return after
    # Of these pods it is not known where their CPUs are, so that neither is what is free.
    if before.spread or before.unplaced:
        return after
    unit = _first_unit(before, uid, request, after.state.pods[uid].grant.containers)
    if unit is None:
        return after
    node, managers, counts = before.state.node, before.state.managers, before.sharing[unit.name].counts
    changed = False
    for numa, count in counts.items():
        if count and 1 << numa < unit.near and fits_on(node, managers, numa, unit.rest):
            told = _told(before, after, unit, numa)
            after, changed = told, changed or told is not after
    return settled_layout(after) if changed else after


def _first_unit(before: Hypothesis, uid: str, request: PodRequest, grants: Sequence[ContainerGrant]) -> _Unit | None:
    """The first containers of a pod that get shared devices; ``None`` where they may be tied to anything else."""
    demand, node = pod_demand(request), before.state.node
    parts = [part for _, part in demand.containers]
    one_by_one = node.config.topology_scope is KubeletScope.CONTAINER
    if one_by_one:
        at = next(at for at, part in enumerate(parts) if before.sharing.keys() & _asked(part))
        earlier, unit = parts[:at], parts[at]
    else:
        at, earlier, unit = 0, [], demand.pod
    # Init containers tie later ones to the NUMA nodes of what they leave.
    if any((part.cpus and node.pins_cpus) or node.devices.keys() & _asked(part) for part in earlier):
        return None
    names = before.sharing.keys() & _asked(unit)
    hint = grants[at].hint
    if len(names) != 1 or hint is None or not hint.preferred or not hint.mask or hint.mask.bit_count() > 1:
        return None
    (name,) = names
    others = {other: count for other, count in unit.devices.items() if other != name}
    return _Unit(uid, name, unit.devices[name], together([*earlier, replace(unit, devices=others)]), hint.mask)


def _asked(part: ContainerDemand) -> set[str]:
    return {name for name, count in part.devices.items() if count}


def _told(before: Hypothesis, after: Hypothesis, unit: _Unit, numa: int) -> Hypothesis:
    """With what it means that too few of the devices near this NUMA node were free."""
    near, name = 1 << numa, unit.name
    changed: dict[tuple[str, int], Reach] = {}
    able = {each: reach for each, reach in held_reaches(before, name).items() if (reach.must | reach.may) & near}
    if len(able) == before.sharing[name].counts[numa] - unit.count + 1:
        for holder, place in able:
            reach = after.reach.get(holder, {}).get((name, place))
            if reach is not None and reach.may & near:
                changed[holder, place] = replace(reach, must=reach.must | near, may=reach.may & ~near)
    if unit.count == 1:
        for (resource, place), reach in after.reach[unit.uid].items():
            if resource == name and reach.may & near:
                changed[unit.uid, place] = replace(reach, may=reach.may & ~near)
    if not changed:
        return after
    reaches = dict(after.reach)
    for (holder, place), reach in changed.items():
        reaches[holder] = {**reaches[holder], (name, place): reach}
    sums = after.sums.get(name)
    if sums is None:
        return replace(after, reach=reaches)
    # What a topology told of several devices together is beside what each of them surely is near.
    surely = sum(1 for each in changed if each in sums.held and changed[each].must & near)
    more = {**sums.more, numa: max(0, sums.more.get(numa, 0) - surely)}
    return replace(after, reach=reaches, sums={**after.sums, name: replace(sums, more=more)})
