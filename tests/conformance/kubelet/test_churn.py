"""The recorded life of kubelet-owned nodes, seen through late topologies, against what the operator's cache answers."""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.conformance.kubelet.churn import LONG, Replay, Tally, class_of, middle
from tests.conformance.vectors import Case, cases, each_file

EVERY: Final = 20
"""One of so many long sequences is judged, from the ``FIRST`` on. A folder of vectors that is named is judged in full."""

FIRST: Final = 5
"""Sequences of average cost: from the 20th on, two of six take three quarters of the time."""

MOST_WRONG_NO: Final = {f"{LONG}, published": 0.03, f"{LONG}, unpublished": 0.03}
"""Shares of what the kubelet admits, by whether its configuration is published."""

MOST_AFTER_RESTART: Final = {f"{LONG}, published": 0.27, f"{LONG}, unpublished": 0.27}
"""The same of a scheduler that starts in the middle."""

SAMPLE_SLACK: Final = 1.5
"""A twentieth of the sequences strays that far from all of them."""


def chosen(file: Path) -> Iterator[Case]:
    """All short sequences, and of the long ones as many as there is time for."""
    in_full = "KOORD_NUMA_VECTORS" in os.environ
    long = 0
    for case in cases(file):
        if class_of(case) == LONG:
            long += 1
            if not in_full and long % EVERY != FIRST:
                continue
        yield case


def judge_with_restart(case: Case) -> tuple[Tally, Tally]:
    """The answers of one scheduler to all questions, and those of another that takes over in the middle."""
    replay, half = Replay(case), middle(case)
    replay.run(half)
    other = replay.restarted(half)
    return replay.run(begin=half), other.run(begin=half)


def by_class(cases: Iterable[Case]) -> tuple[dict[str, Tally], dict[str, Tally]]:
    """
    All answers, by class, and for long sequences by whether the kubelet's configuration is published; then the same of a scheduler that
    starts in the middle of each sequence.
    """
    found: tuple[dict[str, Tally], dict[str, Tally]] = ({}, {})
    for case in cases:
        name = class_of(case)
        if name == LONG:
            name += ", published" if case["published"] else ", unpublished"
        for totals, one in zip(found, judge_with_restart(case), strict=True):
            totals.setdefault(name, Tally()).add(one)
    return found


@cache
def answers(file: Path) -> tuple[dict[str, Tally], dict[str, Tally]]:
    """By class: without a restart, and after one. Both are found at once, as they share each sequence's first half."""
    return by_class(chosen(file))


@each_file("kubelet-churn")
def test_kubelet_churn(file: Path, record_property: Any) -> None:
    """No pod is placed that the kubelet refuses but to explore an option, once on a node; few wait that it would take."""
    found, _ = answers(file)
    for name, tally in found.items():
        record_property("conformance", f"{file.name}, {name}: {tally}")
    slack = 1.0 if "KOORD_NUMA_VECTORS" in os.environ else SAMPLE_SLACK
    for name, tally in found.items():
        assert tally.asked
        assert tally.most_explored <= 1, f"{name}: {tally}"
        assert not tally.wrong_yes, "\n".join([str(tally), *tally.named])
        assert tally.wrong_no.total() <= slack * MOST_WRONG_NO.get(name, 1.0) * tally.admitted, f"{name}: {tally}"
    for name in ("F1", "F2", "F3"):
        if name in found:
            assert not found[name].wrong_no, "\n".join(found[name].named_no)


@each_file("kubelet-churn")
def test_kubelet_churn_after_a_restart(file: Path, record_property: Any) -> None:
    """A scheduler that starts in the middle of a node's life places no pod that the kubelet refuses but to explore an option."""
    _, found = answers(file)
    for name, tally in found.items():
        record_property("conformance", f"{file.name}, {name}, after a restart: {tally}")
        assert tally.asked
        assert tally.most_explored <= 1, f"{name}: {tally}"
        assert not tally.wrong_yes, "\n".join([str(tally), *tally.named])
        assert tally.wrong_no.total() <= SAMPLE_SLACK * MOST_AFTER_RESTART.get(name, 1.0) * tally.admitted, (
            f"{name}: {tally}"
        )
