"""
To which NUMA nodes a pod may come that takes devices of which not all is known that they are near, asked one NUMA node after the other.

Theory. Of what is open only the number of free devices near each NUMA node matters to a container that is the only one to take some. Let it
come to m where as many are free as there may be. A kubelet with other numbers brings it to m as well as long as m has enough: what it
chooses from is among what m was chosen from. So whatever refuses the pod, or treats a later container otherwise, has too few near m, and
it is enough to go on with one device less there than are needed, where the bounds allow that. Each step closes one NUMA node for one
resource, and with the steps in every order of resources no kubelet is left out.

An init container's devices that one later container gets again tie it to what these are near. When it needs no more of them and is the last
that is aligned, the narrowest masks decide: it fits at m, or at some NUMA node that is near each of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from koord_numa.core.kubelet.admit import foreseen
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.demand import PodDemand
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, pins_init_cpus
from koord_numa.core.kubelet.sharing.bounds import Bounds
from koord_numa.core.kubelet.sharing.layouts import current_masks, laid_out, reaches_of, wide
from koord_numa.core.kubelet.sharing.reach import Counts, without
from koord_numa.core.kubelet.state import ContainerGrant
from koord_numa.core.value_objects import ValueObject

MOST_STEPS: Final = 32
"""So many states are asked; beyond, one is asked that leaves less than any of them."""

Ways = Mapping[str, Counts]
"""By resource how many devices in use are near each NUMA node beside those that surely are."""


class Unit(ValueObject, gc=False):
    """What is aligned together takes ``count`` devices; ``kept``: a later container gets them again."""

    count: int
    kept: bool = False


def reached(one: Hypothesis, demand: PodDemand, units: Mapping[str, Unit]) -> list[Hypothesis] | None:
    """
    States that stand for every way in which devices in use may be near NUMA nodes, up to one in which the pod is refused; ``None`` where
    these are too many, or a unit is on several NUMA nodes.

    Only for kubelets with a strict policy, and units that fit one NUMA node.
    """
    search = _Search(one, demand, units)
    try:
        return list(search.states())
    except _NotSo:
        return None


class _NotSo(Exception):
    """The theory does not speak to this pod."""


class _Search:
    """One question to one hypothesis."""

    def __init__(self, one: Hypothesis, demand: PodDemand, units: Mapping[str, Unit]) -> None:
        self.one, self.demand, self.units = one, demand, units
        self.bounds = {name: Bounds.of(one, name) for name in units}
        self.free = {name: _free(one, name) for name in units}
        ends = pins_init_cpus(demand, one.state.node)
        self.orders = (CpuReuse.LEAST, CpuReuse.MOST) if ends else (CpuReuse.BY_ID,)

    def states(self) -> Iterator[Hypothesis]:
        """Raises ``_NotSo``."""
        asked: list[Ways] = [{name: bounds.low for name, bounds in self.bounds.items()}]
        # It grows while it is gone through.
        for number, ways in enumerate(asked):
            if number >= MOST_STEPS:
                raise _NotSo
            state = self.one
            for name, more in ways.items():
                state = wide(state, name, more)
            for order in self.orders:
                grants = foreseen(state.state, self.demand, self.one.trust, order)
                if grants is None:
                    yield state
                    return
                places = {name: _place(name, grants) for name in self.units}
                yield self._tied(state, places)
                asked += [after for after in self._closed(ways, places) if after not in asked]

    def _tied(self, state: Hypothesis, places: Mapping[str, int]) -> Hypothesis:
        """With the narrowest masks for devices that a later container gets again."""
        for name, numa in places.items():
            unit = self.units[name]
            if unit.kept:
                free, high = self.free[name], self.bounds[name].high
                count = len(state.state.node.devices[name].devices) - len(current_masks(state, name))
                # Near all others that are free in any case: so is this one.
                mask = 1 << numa | sum(
                    1 << other for other in free if other != numa and free[other] - high[other] >= count
                )
                state = laid_out(state, name, current_masks(state, name), [mask] * unit.count)
        return state

    def _closed(self, ways: Ways, places: Mapping[str, int]) -> Iterator[Ways]:
        """With too few devices free where one of the resources was found, if there may be."""
        for name, numa in places.items():
            bounds, more = self.bounds[name], ways[name]
            closed = self.free[name][numa] - self.units[name].count + 1
            if closed <= bounds.high[numa] and sum(more.values()) - more[numa] + closed <= bounds.most:
                yield {**ways, name: {**more, numa: closed}}


def _place(name: str, grants: Sequence[ContainerGrant]) -> int:
    hint = next(one.hint for one in grants if one.devices.get(name))
    if hint is None or not hint.preferred or not hint.mask or hint.mask.bit_count() > 1:
        raise _NotSo
    return hint.mask.bit_length() - 1


def _free(one: Hypothesis, name: str) -> dict[int, int]:
    return without(one.sharing[name].counts, (reach.must for reach in reaches_of(one, name).values()))
