"""Drawn sequences are as recorded ones: what the exporter writes first, what the kubelet answers, and what a model is judged by."""

from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from koord_numa.core.kubelet.admit import Admitted, admit_pod
from tests.conformance.kubelet.churn import LONG, class_of, judge
from tests.conformance.kubelet.drawn.__main__ import machines, main
from tests.conformance.kubelet.drawn.machines import first_topology
from tests.conformance.kubelet.drawn.sequences import drawn_sequence
from tests.conformance.kubelet.test_exact_state import judge_exact
from tests.conformance.kubelet.worlds import Recorded, World
from tests.conformance.vectors import Case, cases, each_file

DRAWN: Final = 2
"""So many sequences the suite has time for."""

MAX_WRONG_NO: Final = 0.04
"""Share of what the kubelet admits, with its exact state one second old."""


@each_file("kubelet-churn")
def test_the_first_topology_is_written_as_recorded(file: Path) -> None:
    for case in cases(file):
        if class_of(case) == LONG:
            recorded = Recorded(case)
            written = first_topology(
                case["node"],
                case.get("reserved_set", ""),
                case["exporter"],
                published=case["published"],
                method=recorded.method,
            )
            assert _without_huge_pages(written) == _without_huge_pages(recorded.events[0]["nrt"])


@cache
def drawn(file: Path) -> list[Case]:
    """The drawn sequences, which several tests judge."""
    recorded = [*cases(file)]
    return [drawn_sequence(seed, recorded) for seed in range(DRAWN)]


@each_file("kubelet-churn")
def test_a_drawn_sequence_equals_kubelet_and_exporter(file: Path) -> None:
    recorded = [*cases(file)]
    for seed, case in enumerate(drawn(file)):
        assert case == drawn_sequence(seed, recorded)
        world = Recorded(case)
        played = World(world, world.node, world.ends).play(len(world.events))
        assert not played.wrong
        questions = [(at, event) for at, event in enumerate(world.events) if event["ev"] == "ask"]
        assert questions
        for at, event in questions:
            verdict = admit_pod(played.states[at], "question", world.requests[event["pod"]])
            assert isinstance(verdict, Admitted) is event["kubelet_admits"]


@each_file("kubelet-churn")
def test_the_kubelet_keeps_what_is_placed_in_drawn_sequences(file: Path) -> None:
    for case in drawn(file):
        tally = judge(case)
        assert tally.asked
        assert not tally.wrong_yes, tally.named
        assert max(tally.explored.values(), default=0) <= 1


@each_file("kubelet-churn")
def test_the_exact_state_answers_drawn_sequences(file: Path) -> None:
    for case in drawn(file):
        tally = judge_exact(case)
        assert tally.asked
        assert not tally.wrong_yes, tally.named
        assert not tally.explored
        assert tally.wrong_no.total() <= MAX_WRONG_NO * tally.admitted, tally.named_no


@each_file("kubelet-churn")
def test_written_sequences_are_evaluated_as_recorded_ones(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main([str(tmp_path / "more"), "1", "2"])
    written = [*cases(tmp_path / "more" / file.name)]
    assert [case["id"] for case in written] == ["drawn-1", "drawn-2"]
    assert all(class_of(case) == LONG for case in machines())
    monkeypatch.setenv("KOORD_NUMA_VECTORS", str(tmp_path / "more"))
    assert machines() == written


def _without_huge_pages(topology: Case) -> dict[str, Any]:
    """NFD lists them although there are none."""
    zones = [
        {**zone, "resources": [row for row in zone["resources"] if not row["name"].startswith("hugepages-")]}
        for zone in topology["zones"]
    ]
    return {**topology, "zones": zones}
