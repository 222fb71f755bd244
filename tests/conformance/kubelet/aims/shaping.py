"""
Histories on nodes whose uncore caches have any shape that come ever nearer to a state in which too little is free for a pod.

``prefer-align-cpus-by-uncorecache`` lets a container take nothing over from an init container where another cache suits it better. For many
pods to do so the caches have to be of several sizes on a NUMA node, which ``filling`` does not try, and some of them near several NUMA
nodes of a socket. By simulated annealing cores go to other caches, with all NUMA nodes on one socket: what contradicts a scan or a verdict
costs, and so does each CPU, or device, that is free too much.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, log
from random import Random
from typing import Final

from koord_numa.core.cpu_topology import cpu_topology_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.aims.filling import too_much
from tests.conformance.kubelet.aims.tracks import Track, played
from tests.conformance.kubelet.caches import BY_CACHE, caches_matter
from tests.conformance.kubelet.departures import Branch, Script, replayed
from tests.conformance.kubelet.variants import possible_threads
from tests.conformance.kubelet.worlds import World

RUNS: Final = 4
"""So often it begins again with one cache on each NUMA node."""

STEPS: Final = 2_000
"""So many changes are tried in each run."""

CACHES: Final = 11
"""So many caches the node has at most."""

FEWEST: Final = 2
"""So many cores at least each cache gets that is drawn."""

WARMTH: Final = (0.8, 0.4)
"""By how much a change may be farther from what is wanted, first and last."""

REDRAWN: Final = 0.3
"""So often all cores of a NUMA node go to any caches."""


@dataclass(frozen=True)
class Shape:
    """By NUMA node the cache of each core, cores of so many ``threads`` in the order of CPU ids; and the CPUs that are reserved."""

    threads: int
    caches: Mapping[int, tuple[int, ...]]
    reserved: CpuSet


KEPT: Final = {
    ("churn-114", 236): Shape(
        threads=1,
        caches={
            0: (8, 7, 9, 5, 7, 0, 8, 9, 10, 10),
            1: (3, 3, 9, 4, 1, 9, 3, 3, 5, 3),
            2: (3, 5, 5, 6, 8, 5, 5, 8, 5, 8),
            3: (4, 0, 3, 10, 2, 9, 2, 3, 2, 2),
        },
        reserved=CpuSet.of([20]),
    ),
}
"""What was found once, by sequence and question, as a run may find nothing. Like any other history it is played and compared."""


def kept(truth: World, script: Script, index: int) -> Iterator[tuple[World, Branch]]:
    """The history on the node that is kept for this question, if one is and it agrees with all that was shown."""
    shape = KEPT.get((truth.recorded.case["id"], index))
    # A sequence that was drawn may have the same name.
    if shape is not None and _is_published_alike(truth, shape):
        world = world_of(truth, shape)
        state = replayed(world, script, index)
        if state is not None:
            yield world, Branch(state, script)


def _is_published_alike(truth: World, shape: Shape) -> bool:
    """Does the node with these caches show the same numbers of CPUs, with no option published that it has not?"""
    numas, reserved = truth.node.machine.numa_bits, truth.node.config.reserved_cpus or CpuSet()
    return (
        not truth.recorded.case["published"]
        and shape.threads in possible_threads(truth.recorded)
        and {numa: bits.bit_count() for numa, bits in numas.items()}
        == {numa: len(cores) * shape.threads for numa, cores in shape.caches.items()}
        and all(len(shape.reserved & CpuSet(bits)) == len(reserved & CpuSet(bits)) for bits in numas.values())
    )


def shaping(truth: World, script: Script, index: int, dice: Random) -> Iterator[tuple[World, Branch]]:
    """Histories that agree with all that was shown before this question, with ever less room for its pod."""
    threads = possible_threads(truth.recorded)
    for number in range(RUNS if caches_matter(truth.recorded, index) else 0):
        yield from _run(truth, script, index, _first(truth, threads[number % len(threads)]), dice)


def _run(truth: World, script: Script, index: int, shape: Shape, dice: Random) -> Iterator[tuple[World, Branch]]:
    request = truth.recorded.requests[truth.recorded.events[index]["pod"]]
    cost, (first, last) = inf, WARMTH
    for step in range(STEPS):
        # Metropolis' rule, with the dice thrown first: what comes to cost more is not kept, so that it is not played to its end.
        most = cost - first * (last / first) ** (step / STEPS) * log(1 - dice.random())
        changed = _changed(shape, truth, dice) if step else shape
        world = world_of(truth, changed)
        total, track = _cost(world, script, index, request, most)
        if track is not None and total <= most:
            shape, cost = changed, total
            if not track.total(world, index):
                yield world, Branch(track.states[-1], script)


def _cost(world: World, script: Script, index: int, request: PodRequest, most: float) -> tuple[float, Track | None]:
    track = played(world, script, index, most)
    if not isinstance(track, Track):
        return inf, None
    return track.total(world, index) + too_much(track.states[-1], request), track


def _first(truth: World, threads: int) -> Shape:
    """One cache a NUMA node."""
    caches = {
        numa: (place,) * (bits.bit_count() // threads)
        for place, (numa, bits) in enumerate(truth.node.machine.numa_bits.items())
    }
    return Shape(threads, caches, truth.node.config.reserved_cpus or CpuSet())


def _changed(shape: Shape, truth: World, dice: Random) -> Shape:
    """With some cores of one NUMA node in other caches, or another reserved CPU."""
    numa, kind = dice.choice(sorted(shape.caches)), dice.random()
    cores = list(shape.caches[numa])
    if kind < REDRAWN:
        size = dice.choice((FEWEST, dice.randint(FEWEST, len(cores))))
        drawn = dice.sample(range(CACHES), min(CACHES, -(-len(cores) // size)))
        cores = dice.sample([drawn[place // size % len(drawn)] for place in range(len(cores))], len(cores))
    elif kind < 0.65:
        for _ in range(dice.choice((1, 1, 2, 3))):
            cores[dice.randrange(len(cores))] = dice.choice((dice.choice(cores), dice.randrange(CACHES)))
    elif kind < 0.85:
        one, other = dice.randrange(len(cores)), dice.randrange(len(cores))
        cores[one], cores[other] = cores[other], cores[one]
    elif kind < 0.95:
        # Two caches become one, or change their ids: of equally full ones the lower comes first.
        one, other = dice.randrange(CACHES), dice.randrange(CACHES)
        renamed = {one: other, other: dice.choice((one, other))}
        each = {place: tuple(renamed.get(cache, cache) for cache in had) for place, had in shape.caches.items()}
        return replace(shape, caches=each)
    else:
        return replace(shape, reserved=_other_reserved(shape.reserved, truth, dice))
    return replace(shape, caches={**shape.caches, numa: tuple(cores)})


def _other_reserved(reserved: CpuSet, truth: World, dice: Random) -> CpuSet:
    """Other CPUs reserved, as many on each NUMA node as before, where that is not published."""
    if truth.recorded.case["published"]:
        return reserved
    chosen: list[int] = []
    for bits in truth.node.machine.numa_bits.values():
        ids = list(CpuSet(bits))
        chosen += dice.sample(ids, len(reserved & CpuSet(bits)))
    return CpuSet.of(chosen)


def world_of(truth: World, shape: Shape) -> World:
    """The node with caches of this shape, all of its NUMA nodes on one socket, and else as it is."""
    rows = []
    core = 0
    machine = truth.node.machine
    for numa, bits in machine.numa_bits.items():
        for place, cpu in enumerate(CpuSet(bits)):
            at = place // shape.threads
            rows.append((cpu, core + at, 0, numa, shape.caches[numa][at]))
        core += len(shape.caches[numa])
    distances = [[machine.distances.get((one, other), 10) for other in machine.numa_ids] for one in machine.numa_ids]
    found = cpu_topology_of(sorted(rows), numa_ids=machine.numa_ids, distances=distances)
    options = truth.node.config.cpu_options if truth.recorded.case["published"] else {BY_CACHE: True}
    config = replace(truth.node.config, cpu_options=options, reserved_cpus=shape.reserved)
    return replace(truth, node=replace(truth.node, machine=found, config=config, whole_cores=None))
