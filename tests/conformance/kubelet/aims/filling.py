"""
Histories that come ever nearer to a state in which too little is free for a pod, whatever the scheduler takes to refuse it.

The state for which the scheduler refuses a pod may differ in so many pods from any that a history comes to that being nearer to it leads
nowhere; that of which the pod needs too much says more. By simulated annealing cores, caches, options, departures, and what devices are
near are changed, one of them at a time: what contradicts a scan or a verdict costs, and so does each CPU, or device, that is free too much.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, log
from random import Random
from typing import Final

from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.room import STRICT
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.aims.aimed import Annealing, Attempt, Cores
from tests.conformance.kubelet.aims.tracks import Track, played
from tests.conformance.kubelet.closing import exchanging, shared_and_wanted
from tests.conformance.kubelet.departures import Branch, Script
from tests.conformance.kubelet.worlds import World

RUNS: Final = 6
"""So often it begins again, with the recorded node and last with another one."""

EVENTS: Final = 60_000
"""So many events are played in each run, and for no more changes than ``STEPS``."""

STEPS: Final = 2_500

WARMTH: Final = (1.0, 0.3)
"""By how much a change may be farther from what is wanted, first and last."""

REWIRED: Final = 0.3
"""So often devices exchange NUMA nodes, where some are near several."""


@dataclass(frozen=True)
class Wired(Attempt):
    """One history on a node whose plugin names these NUMA nodes last, by device, where they are not the recorded ones."""

    named: Mapping[str, int] = field(default_factory=dict)


def filling(truth: World, script: Script, index: int, dice: Random) -> Iterator[tuple[World, Branch]]:
    """Histories that agree with all that was shown before this question, with ever less room for its pod."""
    request = truth.recorded.requests[truth.recorded.events[index]["pod"]]
    if truth.recorded.node.pins_cpus and pod_demand(request).pod.cpus:
        search = _Filling(truth, index, {}, dice)
        for number in range(RUNS):
            yield from search.filled(script, as_recorded=number != RUNS - 1)


def too_much(state: KubeletState, request: PodRequest) -> int:
    """
    How many CPUs and devices less would have to be free for the pod to be refused for their number.

    Strict policies need one NUMA node that has enough for the largest container. ``best-effort`` needs enough on the node.
    """
    demand, node = pod_demand(request), state.node
    found = max(0, state.managers.cpus.bit_count() - demand.pod.cpus + 1)
    if node.config.topology_policy not in STRICT:
        return found
    part = max((part for _, part in demand.containers), key=lambda part: part.cpus)
    on_each = 0
    for numa, here in node.machine.numa_bits.items():
        spare = [(state.managers.cpus & here).bit_count() - part.cpus]
        spare += [
            (node.devices[name].near(1 << numa) & ~state.managers.devices[name]).bit_count() - count
            for name, count in part.devices.items()
            if count and name in node.devices
        ]
        on_each += max(0, min(spare) + 1)
    return min(found, on_each)


class _Filling(Annealing):
    def filled(self, script: Script, *, as_recorded: bool) -> Iterator[tuple[World, Branch]]:
        """One run; the histories that contradict nothing."""
        first, last = WARMTH
        drawn = Wired(self.recorded.node, self._recorded_cores(), script) if as_recorded else self._drawn(script)
        one = Wired(drawn.node, drawn.cores, script)
        track = played(self._world(one), script, self.index, inf)
        assert isinstance(track, Track)
        cost, left = self._total(one, track), EVENTS
        for step in range(STEPS):
            if left < 0:
                return
            done = max(step / STEPS, 1 - left / EVENTS)
            # Metropolis' rule, with the dice thrown first: what comes to cost more is not kept, so that it is not played to its end.
            most = cost - first * (last / first) ** done * log(1 - self.dice.random())
            other = self._rewired(one)
            before = track if other.node is one.node else None
            after = played(self._world(other), other.script, self.index, most, before)
            left -= after if isinstance(after, int) else after.steps
            total = inf if isinstance(after, int) else self._total(other, after)
            if isinstance(after, Track) and total <= most:
                one, track, cost = other, after, total
                if not track.total(self._world(one), self.index):
                    yield self._world(one), Branch(track.states[-1], one.script)

    def _rewired(self, one: Wired) -> Wired:
        """With one change, now and then of what devices are near."""
        world = self._world(one)
        names = shared_and_wanted(world, None)
        if not names or self.dice.random() > REWIRED:
            changed = self._changed(one)
            assert isinstance(changed, Wired)
            # Other options come with the recorded devices.
            return changed if changed.node.devices is one.node.devices else replace(changed, named={})
        other = exchanging(world, self.dice.choice(names), self.dice)
        return replace(one, node=other.node, named=other.last_named)

    def _recorded_cores(self) -> Cores:
        machine = self.recorded.node.machine
        cpus = sorted(machine.cpus, key=lambda cpu: (cpu.core, cpu.id))
        ids = {numa: [cpu.id for cpu in cpus if cpu.numa == numa] for numa in machine.numa_ids}
        return Cores(machine.threads_per_core, False, ids, {cpu.numa: (cpu.socket, 0) for cpu in cpus})

    def _world(self, one: Attempt) -> World:
        return replace(super()._world(one), last_named=one.named if isinstance(one, Wired) else {})

    def _total(self, one: Wired, track: Track) -> float:
        request = self.recorded.requests[self.recorded.events[self.index]["pod"]]
        return track.total(self._world(one), self.index) + too_much(track.states[-1], request)
