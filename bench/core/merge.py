"""
Merging hints: the recorded inputs beside the Go implementations, and wide machines.

CPU time of this process, inputs parsed beforehand. An answer that differs from the recorded one is an error, not a figure.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import mean, median
from typing import Any, Final

from bench.figure import Figure, NotMeasurableError
from koord_numa.core.numa.hints import Answer, Counted, Hint, HintRule, masks_of_size
from koord_numa.core.numa.policies import admitted_affinity, decide_koordinator
from koord_numa.core.objects.vocabulary import KubeletPolicy, NumaPolicy
from tests.conformance.koordinator import tm as koord_tm
from tests.conformance.kubelet import tm as kubelet_tm
from tests.conformance.vectors import Oracle, cases, folder

NAMES: Final = ("koord-tm", "kubelet-tm", "merge")

_ROUNDS: Final = 5
_GIB: Final = 2**30
_RESOURCES: Final = ("cpu", "memory", "nvidia.com/gpu")


def figures() -> Iterator[Figure]:
    """Recorded inputs first, then the wide machines."""
    yield from _recorded(koord_tm.ORACLE, lambda given: koord_tm.as_recorded(koord_tm.answer(given)))  # with reasons
    yield from _recorded(kubelet_tm.ORACLE, kubelet_tm.answer)
    yield from _listed()
    yield from _rules()


def _recorded(oracle: Oracle[Any, Any], decide: Callable[[Any], object]) -> Iterator[Figure]:
    file = folder() / "bench" / f"{oracle.name}.jsonl"
    if not file.is_file():
        raise NotMeasurableError(f"no {file.name} among the recorded inputs")
    loaded = [(case, oracle.load(case)) for case in cases(file)]
    # Before the time is taken: a fast answer that is wrong is none.
    for case, given in loaded:
        if difference := oracle.agrees(case, oracle.answer(given)):
            raise AssertionError(f"{case['id']}: {difference}")
    times = sorted(_microseconds(partial(decide, given)) for _, given in loaded)
    lines = (json.loads(line) for line in (file.parent / "results-go.jsonl").read_text().splitlines())
    go = next(line for line in lines if line["oracle"] == oracle.name)
    note = (
        f"median {median(times):.0f}, p99 {times[len(times) * 99 // 100]:.0f}; Go median {go['median_ns'] / 1000:.0f}"
    )
    yield Figure(f"{oracle.name} mean", mean(times), "us", go["ns_per_decision"] / 1000, note=note)


def _listed() -> Iterator[Figure]:
    """Three resources that accept all 255 sets of eight NUMA nodes; preferences that clash leave nothing to find early."""
    nodes = 0xFF
    masks = [mask for size in range(1, 9) for mask in masks_of_size(nodes, size)]
    # Sizes are those of preferred masks: where all resources prefer one NUMA node, the first candidate is the best one.
    for title, sizes in (("aligned", (1, 1, 1)), ("clashing", (1, 2, 3))):
        scored: Answer = {
            # Scores that differ by mask and repeat now and then, so that ties occur as in practice.
            resource: [Hint(mask, mask.bit_count() == size, score=mask * 7 % 101) for mask in masks]
            for resource, size in zip(_RESOURCES, sizes, strict=True)
        }
        kubelet = _milliseconds(_deciding(KubeletPolicy.RESTRICTED, [scored], nodes))
        yield Figure(f"merge kubelet, 8 NUMA x 3 x 255, {title}", kubelet, "ms", 20)
        koordinator = _milliseconds(partial(decide_koordinator, NumaPolicy.BEST_EFFORT, [scored], nodes))
        yield Figure(f"merge koordinator, 8 NUMA x 3 x 255, {title}", koordinator, "ms", 20)


def _rules() -> Iterator[Figure]:
    """The widest machines that a kubelet is modelled on, with rules as its managers give them."""
    for policy in (KubeletPolicy.RESTRICTED, KubeletPolicy.BEST_EFFORT, KubeletPolicy.SINGLE_NUMA_NODE):
        for title, busy in (("free", False), ("busy", True)):
            deciding = _deciding(policy, _node(16, wanted=3, busy=busy), 2**16 - 1)
            yield Figure(f"merge {policy}, 16 NUMA, {title}", _milliseconds(deciding), "ms", 50)


def _node(numa_nodes: int, *, wanted: int, busy: bool) -> Sequence[Answer]:
    """CPUs, memory and devices for as much as ``wanted`` empty NUMA nodes hold, partly taken when busy."""
    totals = {"cpu": 16, "memory": 64 * _GIB, "nvidia.com/gpu": 8}
    answer = {}
    for step, (resource, total) in enumerate(totals.items(), start=3):
        # Different parts are taken of each resource: where all were taken alike, their masks would agree at once.
        taken = {numa: total * (numa * step % 5) // 8 if busy else 0 for numa in range(numa_nodes)}
        counted = Counted({numa: total - taken[numa] for numa in taken}, total * wanted)
        answer[resource] = HintRule(counted.nodes, wanted, counted.accepts, counted=counted)
    return [answer]


def _deciding(policy: KubeletPolicy, answers: Sequence[Answer], nodes: int) -> Callable[[], object]:
    return lambda: admitted_affinity(policy, answers, nodes)


def _milliseconds(call: Callable[[], object]) -> float:
    return _microseconds(call) / 1000


def _microseconds(call: Callable[[], object]) -> float:
    """The median of a few rounds, each long enough for the clock's resolution."""
    call()
    rounds = []
    for _ in range(_ROUNDS):
        calls, start = 0, time.process_time_ns()
        # # half a millisecond: many times what reading the clock costs
        while (spent := time.process_time_ns() - start) < 500_000:
            call()
            calls += 1
        rounds.append(spent / calls / 1000)
    return median(rounds)
