"""
Histories that come ever nearer to the state for which the scheduler refuses a pod.

That state says how many CPUs of each NUMA node every pod holds, and neither which cores and uncore caches make the kubelet give it these
nor which pods have left by when. By simulated annealing both are changed step by step: what contradicts a scan or a verdict costs, and so
does each CPU that a pod holds otherwise than there. What contradicts nothing is a history that may be a witness.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from typing import Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.aims.refusals import refused_by_scheduler
from tests.conformance.kubelet.caches import BY_CACHE
from tests.conformance.kubelet.departures import Branch, Script, graded, windows
from tests.conformance.kubelet.variants import (
    HALF,
    ORDERS,
    machine_of,
    ordered_ids,
    possible_threads,
    reserving,
    with_options,
)
from tests.conformance.kubelet.worlds import World

RUNS: Final = 6
"""So often it begins again with another node."""

EVENTS: Final = 100_000
"""So many events are played in each run, and for no more changes than ``STEPS``."""

STEPS: Final = 800

WARMTH: Final = (2.0, 0.2)
"""By how much a change may be farther from what is wanted, first and last."""

FARTHEST: Final = 60
"""More CPUs held otherwise are as bad as so many."""

DRAWN: Final = 10
"""Of so many nodes each run begins with the best."""


@dataclass(frozen=True)
class Cores:
    """
    The CPUs of each NUMA node in cores of so many ``threads``, siblings neighbours in ``ids`` or ``apart``, and in ``places``: its socket,
    and how many cores share an uncore cache.
    """

    threads: int
    apart: bool
    ids: Mapping[int, Sequence[int]]
    places: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Attempt:
    """One history: a node, the cores that it has, and the script of departures."""

    node: KubeletNode
    cores: Cores
    script: Script


def aimed(truth: World, script: Script, index: int, dice: Random) -> Iterator[tuple[World, Branch]]:
    """Histories that agree with all that was shown before this question, near the state for which the scheduler refuses its pod."""
    recorded = truth.recorded
    wanted = refused_by_scheduler(recorded, index) if recorded.node.pins_cpus else None
    if wanted is None:
        return
    search = Annealing(truth, index, _held(wanted), dice)
    for _ in range(RUNS):
        yield from search.run(script)


class Annealing:
    """The changes, one at a time, and what each history costs."""

    def __init__(self, truth: World, index: int, wanted: Mapping[str, tuple[int, ...]], dice: Random) -> None:
        self.truth, self.recorded, self.index, self.wanted, self.dice = truth, truth.recorded, index, wanted, dice
        events = self.recorded.events
        self.may = {uid: may for uid, may in windows(self.recorded, index).items() if may[0] < min(may[1], index)}
        self.arrivals = [at for at in range(index + 1) if events[at]["ev"] == "pod" or at == index]

    def run(self, script: Script) -> Iterator[tuple[World, Branch]]:
        """One run; the histories that contradict nothing."""
        steps = min(STEPS, EVENTS // (self.index + 1))
        first, last = WARMTH
        one = min((self._drawn(script) for _ in range(DRAWN)), key=lambda one: sum(self._cost(one)[:2]))
        *cost, _ = self._cost(one)
        for step in range(steps):
            other = self._changed(one)
            wrong, apart, state = self._cost(other)
            more = wrong + apart - sum(cost)
            if more <= 0 or self.dice.random() < exp(-more / (first * (last / first) ** (step / steps))):
                one, cost = other, [wrong, apart]
                if not wrong:
                    yield self._world(one), Branch(state, one.script)

    def _world(self, one: Attempt) -> World:
        return replace(self.truth, node=one.node)

    def _cost(self, one: Attempt) -> tuple[int, int, KubeletState]:
        """What contradicts what was shown, and how many CPUs are held otherwise than is wanted."""
        wrong, state = graded(self._world(one), one.script, self.index)
        held, nothing = _held(state), (0,) * len(state.node.machine.numa_bits)
        apart = sum(
            abs(has - wants)
            for uid in held.keys() | self.wanted.keys()
            for has, wants in zip(held.get(uid, nothing), self.wanted.get(uid, nothing), strict=True)
        )
        return wrong, min(apart, FARTHEST), state

    def _drawn(self, script: Script) -> Attempt:
        cores = self._cores()
        return Attempt(self._with(self._config(), cores), cores, script)

    def _cores(self) -> Cores:
        threads, order = self.dice.choice(possible_threads(self.recorded)), self.dice.choice(ORDERS)
        ids = ordered_ids(self.recorded, threads, order, self.dice)
        sockets = {cpu.numa: cpu.socket for cpu in self.recorded.node.machine.cpus}
        most = max(map(len, ids.values())) // threads
        share, mixed = self.dice.randint(1, most), self.dice.random() < HALF
        places = {numa: (sockets[numa], self.dice.randint(1, most) if mixed else share) for numa in ids}
        return Cores(threads, order == "apart", ids, places)

    def _config(self) -> KubeletNode:
        """The recorded node, with other options and other reserved CPUs where these are not published."""
        node = self.recorded.node
        if self.recorded.case["published"]:
            return node
        node = with_options(node, self.dice)
        if self.dice.random() < HALF:
            node = replace(node, config=replace(node.config, cpu_options={BY_CACHE: True}))
        return reserving(node, self.dice)

    def _with(self, node: KubeletNode, cores: Cores) -> KubeletNode:
        machine = machine_of(self.recorded, cores.ids, cores.threads, cores.places, apart=cores.apart)
        return replace(node, machine=machine, whole_cores=None)

    def _changed(self, one: Attempt) -> Attempt:
        """With one change of when a pod leaves, of the configuration, or of the cores."""
        kind = self.dice.random()
        if kind < HALF and self.may:
            return replace(one, script=self._with_other_end(one.script))
        if kind < 0.6:
            return replace(one, node=self._with(self._config(), one.cores))
        cores = self._cores() if kind < 0.65 else self._with_other_cores(one.cores)
        return replace(one, node=self._with(one.node, cores), cores=cores)

    def _with_other_end(self, script: Script) -> Script:
        ends = dict(script.ends)
        uid = self.dice.choice(sorted(self.may))
        first, last = self.may[uid]
        ends.pop(uid, None)
        # A departure matters in whether it comes before or after an arrival.
        at = self.dice.choice([at for at in self.arrivals if first <= at <= last] + [last])
        if at <= self.index:
            ends[uid] = at
        return replace(script, ends=ends)

    def _with_other_cores(self, cores: Cores) -> Cores:
        """With CPUs of one NUMA node in each other's place, or with uncore caches of another size there."""
        numa = self.dice.choice(sorted(cores.ids))
        if self.dice.random() < HALF:
            ids = list(cores.ids[numa])
            for _ in range(self.dice.choice((1, 1, 2, 4))):
                one, other = self.dice.sample(range(len(ids)), 2)
                ids[one], ids[other] = ids[other], ids[one]
            return replace(cores, ids={**cores.ids, numa: ids})
        share = self.dice.randint(1, len(cores.ids[numa]) // cores.threads)
        alike = self.dice.random() < 0.2
        places = {each: (at, share if alike or each == numa else old) for each, (at, old) in cores.places.items()}
        return replace(cores, places=places)


def _held(state: KubeletState) -> dict[str, tuple[int, ...]]:
    """How many CPUs of each NUMA node each pod holds."""
    found: dict[str, tuple[int, ...]] = {}
    for uid, pod in state.pods.items():
        bits = CpuSet()
        for one in pod.grant.containers:
            bits |= one.cpus
        if bits:
            found[uid] = tuple((bits.bits & here).bit_count() for here in state.node.machine.numa_bits.values())
    return found
