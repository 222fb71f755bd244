"""
Time per decision over the recorded bench inputs, beside the recorded mean of the Go implementation.

Inputs are parsed beforehand, as they were in Go. Process CPU time is measured: others may be using the machine.
"""

import gc
import json
import time
from collections.abc import Iterator
from statistics import fmean, median, quantiles
from typing import Any, Final

from bench.figure import Figure, NotMeasurableError
from tests.conformance.vectors import Oracle, cases, folder

ROUNDS: Final = 10
"""Every case is answered as often, and counts with its mean, as in Go."""


def oracle_figures(oracle: Oracle[Any, Any]) -> Iterator[Figure]:
    """The mean with Go's as its target; median and p99 beside Go's, for information, with the same kind of target."""
    bench = folder() / "bench"
    file = bench / f"{oracle.name}.jsonl"
    if not file.is_file():
        raise NotMeasurableError(f"no {file.name} among the recorded answers")
    questions = [oracle.load(case) for case in cases(file)]
    micros = [spent / 1000 for spent in timings(oracle, questions)]
    go = recorded(oracle.name)
    yield Figure(f"{oracle.name} mean", fmean(micros), "us", go["ns_per_decision"] / 1000, note="Go mean")
    yield Figure(f"{oracle.name} median", median(micros), "us", go["median_ns"] / 1000, note="Go median")
    # # the 99th of 99 cut points
    yield Figure(f"{oracle.name} p99", quantiles(micros, n=100)[98], "us", go["p99_ns"] / 1000, note="Go p99")


def timings(oracle: Oracle[Any, Any], questions: list[Any]) -> list[float]:
    """Mean nanoseconds of CPU time of each question, after one answer that fills the tables of its machine."""
    means: list[float] = []
    # A collection in the middle of a question of 50 us would be its whole time; garbage of earlier modules goes first.
    gc.collect()
    gc.disable()
    try:
        for question in questions:
            # Uncounted: Go's benchmark warmed up as well.
            oracle.answer(question)
            start = time.process_time_ns()
            for _ in range(ROUNDS):
                oracle.answer(question)
            means.append((time.process_time_ns() - start) / ROUNDS)
    finally:
        gc.enable()
    return means


def recorded(oracle: str) -> dict[str, float]:
    """What Go needed for this oracle."""
    file = folder() / "bench" / "results-go.jsonl"
    results = (json.loads(line) for line in file.read_text().splitlines())
    return next(result for result in results if result["oracle"] == oracle)
