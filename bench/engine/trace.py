"""
A production trace (8,152 pods, 1,523 nodes) replayed through the real engine: arrivals, departures, and what each strategy makes of them.

``cli/cluster/trace.py`` reads it, and says what is assumed of NUMA nodes and policies. ``python -m bench.engine.trace`` prints the
table of the documentation.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any, Final

from bench.figure import Figure, NotMeasurableError
from koord_numa.cli.cluster.trace import GPU, TracePod, read_trace_nodes, read_trace_pods
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.verdicts import Alignment
from koord_numa.core.objects.vocabulary import ScoringType
from koord_numa.core.rebind.layout import NodeLayout, amounts_after
from koord_numa.core.rebind.plan import RebindPlan, Threshold, improvement, plan_rebind
from koord_numa.core.resources import CPU
from koord_numa.core.value_objects import replace
from koord_numa.engine import Dependencies, Scheduler, Source
from koord_numa.engine.device_moves import find_moves
from koord_numa.engine.rebind.context import layout_of_node
from koord_numa.settings import ProfileSettings, ScoreWeightSettings, ScoringStrategy, Settings

DAY: Final = 86_400
"""The engine lives through one day of the trace in a second: its own pauses are meant for seconds, not for months."""
SAMPLES: Final = 50
BLOCK: Final = 4
"""Whole GPUs of one machine that the columns about blocks ask for."""
USUAL_GPU_POD: Final = (8_000, 1_000)
"""A usual request of the trace: milli-CPU and GPU units of a pod with one GPU. Free GPUs beyond what such pods could use are stranded."""

PROFILES: Final = {
    **{kind.value: ProfileSettings(scoring_strategy=ScoringStrategy(type=kind)) for kind in ScoringType},
    "MostAllocated, devices: 0": ProfileSettings(score_weights=ScoreWeightSettings(devices=0)),
    "LeastAllocated, devices: 0": ProfileSettings(
        scoring_strategy=ScoringStrategy(type=ScoringType.LEAST_ALLOCATED), score_weights=ScoreWeightSettings(devices=0)
    ),
}
"""Every strategy, and two without the part of the score that keeps CPUs for devices."""


@dataclass
class Outcome:
    """What became of the pods, and the state of the cluster over time."""

    placed: int = 0
    waited: int = 0
    never: int = 0
    seconds: float = 0.0
    alignments: Counter[str] = field(default_factory=Counter)
    stranded_gpu: list[float] = field(default_factory=list)
    scattered_cpu: list[float] = field(default_factory=list)
    block_gpu: list[float] = field(default_factory=list)
    blocks: int = 0
    largest: int = 0
    crossings: list[int] = field(default_factory=list)
    rebinds: int = 0
    moved: int = 0

    @property
    def aligned_share(self) -> float:
        """Of the pods that were placed with an alignment, those on as few NUMA nodes as can be."""
        # Pods that asked for no alignment would thin the share out.
        tried = sum(count for name, count in self.alignments.items() if name != Alignment.NOT_ATTEMPTED.value)
        return self.alignments[Alignment.ALIGNED.value] / tried if tried else 1.0


def folder() -> Path:
    """Where the trace lies; raises ``NotMeasurableError`` when it is absent."""
    shared = Path(os.environ.get("KOORD_NUMA_SHARED", Path(__file__).parents[3] / "shared")) / "traces"
    if not (shared / "openb_pod_list_default.csv").is_file():
        raise NotMeasurableError(f"no trace in {shared}")
    return shared


def read_nodes() -> list[tuple[Node, NodeResourceTopology]]:
    """Every machine with the topology that is assumed for it."""
    return read_trace_nodes(folder() / "openb_node_list_all_node.csv")


def read_jobs() -> list[TracePod]:
    """Every pod, by arrival."""
    return read_trace_pods(folder() / "openb_pod_list_default.csv")


class Replay:
    """
    One run. ``forever``: no pod leaves, so that the cluster fills up. ``rebind``: at each sample every node that an automatic rebind
    would pick is repacked, with the default thresholds and no limit of rate; ``None`` does not even count crossings.
    ``gather``: at each sample the pods of all reported moves are evicted, one
    after the other, and decided again.
    """

    def __init__(
        self, profile: ProfileSettings, *, forever: bool = False, rebind: bool | None = None, gather: bool = False
    ) -> None:
        # The engine's clock reads the trace's time, divided by DAY.
        self.now = 0.0
        self.rebind = rebind
        self.forever = forever
        self.gather = gather
        silent: Any = SimpleNamespace(
            fresh=lambda: True,
            event=lambda *_, **__: None,
            node_event=lambda *_, **__: None,
            bind=_agree,
            node_takes_pods=_agree,
        )
        outside = Dependencies(silent, silent, silent, lambda *_: {}, lambda: self.now / DAY)
        self.engine = Scheduler(Settings(profiles=(profile,)), outside)
        for node, topology in read_nodes():
            self.engine.handlers.nodes.observe("ADDED", node)
            self.engine.handlers.topologies.observe("ADDED", topology)
        for source in Source:
            self.engine.synced(source)
        self.outcome = Outcome()
        self.evicted: set[str] = set()

    async def run(self, jobs: list[TracePod]) -> Outcome:
        """Arrivals and departures in the order of time; the samples of fragmentation are not part of the time measured."""
        # A heap by departure: the trace has arrivals in order, and departures follow from placements.
        leaving: list[tuple[float, str]] = []
        by_name = {job.pod.key.uid: job for job in jobs}
        every = max(1, len(jobs) // SAMPLES)
        for number, job in enumerate(jobs):
            started = time.process_time()
            # Departures first: what they free is there for the pod that arrives.
            await self._until(job.arrives, leaving)
            self.engine.handlers.pending_pods.observe("ADDED", job.pod)
            if job.pod.key.uid not in await self._settle(leaving, by_name):
                self.outcome.waited += 1
            self.outcome.seconds += time.process_time() - started
            # Fifty samples in all: a sample looks at every node and would dominate the replay.
            if number % every == 0:
                if self.gather:
                    await self._gather(leaving, by_name)
                self._sample()
                if self.rebind is not None:
                    self._repack()
        if not self.forever:
            started = time.process_time()
            while leaving:
                await self._until(leaving[0][0], leaving)
                await self._settle(leaving, by_name)
            self.outcome.seconds += time.process_time() - started
        self.outcome.never = len(self.engine.waiting())
        self.outcome.alignments.update(self.engine.metrics.placements)
        return self.outcome

    async def _until(self, moment: float, leaving: list[tuple[float, str]]) -> None:
        while leaving and leaving[0][0] <= moment and not self.forever:
            when, uid = heappop(leaving)
            # Never backwards: a pod that waited leaves later than the trace says.
            self.now = max(self.now, float(when))
            pod = self.engine.cache.pod(uid)
            if pod is not None:
                self.engine.handlers.bound_pods.observe("DELETED", pod)
        self.now = max(self.now, float(moment))

    async def _settle(self, leaving: list[tuple[float, str]], by_name: dict[str, TracePod]) -> set[str]:
        placed = set()
        while (pod := self.engine.loop.next_pod()) is not None:
            await self.engine.loop.schedule_one(pod)
            uid = pod.uid
            seen = self.engine.cache.pod(uid)
            if seen is None:
                continue
            self.engine.handlers.bound_pods.observe("ADDED", replace(seen, phase="Running", started=True))
            job = by_name[uid]
            # A pod lives as long as in the trace, from the moment at which it was placed.
            heappush(leaving, (self.now + job.leaves - job.arrives, uid))
            placed.add(uid)
        self.outcome.placed += len(placed)
        return placed

    async def _gather(self, leaving: list[tuple[float, str]], by_name: dict[str, TracePod]) -> None:
        """Evict the pods of reported moves. A move is carried out only if it is still right after those before it."""
        for _ in range(100):
            moves = find_moves(self.engine, BLOCK * USUAL_GPU_POD[1])
            # No pod twice: it may have come back to the same node.
            move = next((move for move in moves if move is not None and move.pod.key.uid not in self.evicted), None)
            if move is None:
                return
            self.evicted.add(move.pod.key.uid)
            self.engine.handlers.bound_pods.observe("DELETED", move.pod)
            self.engine.handlers.pending_pods.observe("ADDED", by_name[move.pod.key.uid].pod)
            placed = await self._settle(leaving, by_name)
            self.outcome.placed -= len(placed)
            self.outcome.moved += 1

    def _sample(self) -> None:
        """How much of what is free cannot be used as people would like."""
        free_gpu = usable_gpu = free_cpu = largest = blocks = block = 0
        cpu, unit = USUAL_GPU_POD
        for record in self.engine.cache.nodes.values():
            held = record.ledger.amounts
            gpu = record.allocatable.get(GPU, 0) - held.get(GPU, 0)
            here = record.allocatable.get(CPU, 0) - held.get(CPU, 0)
            free_gpu += gpu
            # GPUs are in thousandths here, so that `unit` is one whole GPU.
            usable_gpu += unit * min(gpu // unit, max(0, here) // cpu)
            blocks += min(gpu // (BLOCK * unit), max(0, here) // (BLOCK * cpu))
            block = max(block, min(gpu // unit, max(0, here) // cpu))
            free_cpu += here
            zones = record.topology.zones if record.topology else ()
            largest += max(
                (zone.allocatable.get(CPU, 0) - record.ledger.numa.get(zone.numa, {}).get(CPU, 0) for zone in zones),
                # The best NUMA node times their number: as if each were as free as the best one.
                default=0,
            ) * len(zones)
        self.outcome.stranded_gpu.append(1 - usable_gpu / free_gpu if free_gpu else 0.0)
        self.outcome.block_gpu.append(BLOCK * unit * blocks / free_gpu if free_gpu else 0.0)
        self.outcome.blocks, self.outcome.largest = blocks, block
        self.outcome.scattered_cpu.append(max(0.0, largest / free_cpu - 1) if free_cpu else 0.0)

    def _repack(self) -> None:
        """Count NUMA crossings of pods with CPUs of their own; then carry out what automatic rebinds would, in one go."""
        crossings = 0
        for name in sorted(self.engine.cache.nodes):
            layout = layout_of_node(self.engine.cache, name, self.engine.settings)
            if isinstance(layout, str):
                continue
            crossings += layout.figures_now.crossings
            # Counted in any case: both columns of the table come from the same count.
            if not self.rebind or not layout.figures_now.crossings:
                continue
            plan = plan_rebind(layout)
            if plan and improvement(plan, Threshold()):
                self._carry_out(plan, layout)
        self.outcome.crossings.append(crossings)

    def _carry_out(self, plan: RebindPlan, layout: NodeLayout) -> None:
        ends = {move.pod.uid: move.after for move in plan.moves}
        for uid, cpus in ends.items():
            pod = self.engine.cache.pod(uid)
            if pod is None or pod.assignment is None:
                continue
            held = replace(pod.assignment, cpus=cpus, numa=amounts_after(pod.assignment.numa, layout.machine, cpus))
            self.engine.handlers.bound_pods.observe("MODIFIED", replace(pod, assignment=held))
        self.outcome.rebinds += 1
        self.outcome.moved += len(ends)


async def _agree(*_: object) -> bool:
    return True


def replay(
    profile: ProfileSettings, *, forever: bool = False, rebind: bool | None = None, gather: bool = False
) -> Outcome:
    """One run over the whole trace."""
    jobs = read_jobs()
    if gather:
        # Only pods that a controller would create again are moved.
        jobs = [replace(job, pod=replace(job.pod, owner=job.pod.key.uid)) for job in jobs]
    return asyncio.run(Replay(profile, forever=forever, rebind=rebind, gather=gather).run(jobs))


def rebind_table() -> Iterator[str]:
    """What automatic rebinds do to NUMA crossings over the trace, line by line."""
    yield "| pods | automatic rebinds | NUMA crossings, mean | at most | rebinds | pods moved | never placed |"
    yield "|---|---|---|---|---|---|---|"
    for forever in (False, True):
        for rebind in (False, True):
            found = replay(ProfileSettings(), forever=forever, rebind=rebind)
            yield (
                f"| {'stay for ever' if forever else 'come and go'} | {'on' if rebind else 'off'} "
                f"| {mean(found.crossings):.1f} | {max(found.crossings)} | {found.rebinds} | {found.moved} | {found.never} |"
            )


def block_table() -> Iterator[str]:
    """Blocks of free GPUs before and after the moves that the scheduler reports, line by line."""
    yield "| pods | scoring | moves | free GPUs in blocks of 4 | stranded GPUs | blocks at the end | largest pod at the end |"
    yield "|---|---|---|---|---|---|---|"
    for forever in (False, True):
        for name in ("MostAllocated", "LeastAllocated"):
            for gather in (False, True):
                found = replay(PROFILES[name], forever=forever, gather=gather)
                yield (
                    f"| {'stay for ever' if forever else 'come and go'} | {name} | {found.moved if gather else 'off'} "
                    f"| {mean(found.block_gpu):.1%} | {mean(found.stranded_gpu):.1%} | {found.blocks} | {found.largest} GPUs |"
                )


def figures() -> Iterator[Figure]:
    """The time of a replay with the default strategy."""
    outcome = replay(ProfileSettings())
    note = f"{outcome.placed} placed, {outcome.waited} waited, {outcome.aligned_share:.1%} aligned"
    yield Figure("trace-replay", outcome.seconds, "s", 10.0, note=note)


def table() -> Iterator[str]:
    """The documentation's table, line by line."""
    yield "| pods | scoring | placed | waited | never | aligned | stranded GPUs | unevenly free CPUs | CPU time |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for forever in (False, True):
        for name, profile in PROFILES.items():
            found = replay(profile, forever=forever)
            kind = "stay for ever" if forever else "come and go"
            yield (
                f"| {kind} | {name} | {found.placed} | {found.waited} | {found.never} | {found.aligned_share:.1%} "
                f"| {mean(found.stranded_gpu):.1%} | {mean(found.scattered_cpu):.1%} | {found.seconds:.1f} s |"
            )


if __name__ == "__main__":
    try:
        for line in chain(table(), rebind_table(), block_table()):
            print(line, flush=True)
    except NotMeasurableError as error:
        raise SystemExit(str(error)) from None
