"""
The kubelet's recorded answers to sequences of pods, against the exact model and against what a scheduler can conclude; and our model of
its managers against the kubelet itself: the CPUs that it assigns, and hints merged under its policies.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from koord_numa.core.kubelet.admit import NotAdmitted
from tests.conformance.kubelet import cpu as kubelet_cpu
from tests.conformance.kubelet import tm as kubelet_tm
from tests.conformance.kubelet.admission import Sequence, exported, load, published, written
from tests.conformance.kubelet.seen import (
    Score,
    judge,
    with_full_configuration,
    with_published_amounts,
    with_published_cpu_options,
)
from tests.conformance.vectors import Case, Conforms, Oracle, cases, each_file

Answers = list[Mapping[str, Any]]


def replay(sequence: Sequence) -> Answers:
    """Return the answers of the exact model at each step, and the zones that an exporter would publish after it."""
    return list(_answers(sequence))


def _answers(sequence: Sequence) -> Iterator[Mapping[str, Any]]:
    for state, verdict in sequence.played:
        if verdict is None:
            out: Mapping[str, Any] = {}
        elif isinstance(verdict, NotAdmitted):
            out = {"admit": False, "reason": verdict.refusal.reason}
        else:
            out = written(verdict.grant)
        yield {"out": out, "zones": exported(sequence.node, state, sequence.memory)}


def agrees(case: Case, ours: Answers) -> str | None:
    """Every answer in full (containers, CPUs, blocks, devices, hints), and every recorded zone."""
    for number, (step, answer) in enumerate(zip(case["steps"], ours, strict=True)):
        recorded = step.get("out", {})
        if _ordered(recorded) != _ordered(answer["out"]):
            return f"step {number}: {answer['out']}, recorded {recorded}"
        if "nrt" in step and published(step["nrt"]) != answer["zones"]:
            return f"step {number}: zones {answer['zones']}, recorded {published(step['nrt'])}"
    if published(case["nrt_after"]) != ours[-1]["zones"]:
        return f"after the last step: zones {ours[-1]['zones']}, recorded {published(case['nrt_after'])}"
    return None


def _ordered(out: Mapping[str, Any]) -> Mapping[str, Any]:
    """Lists whose order says nothing, sorted."""
    containers = {
        name: {
            **one,
            "devices": {resource: sorted(ids) for resource, ids in one["devices"].items()},
            "memory_blocks": sorted(one.get("memory_blocks", ()), key=lambda block: str(block["type"])),
        }
        for name, one in out.get("containers", {}).items()
    }
    return {**out, "containers": containers}


_SEQUENCES: dict[str, Sequence] = {}


def load_once(case: Case) -> Sequence:
    """The sequence of a case, which all tests share: the exact model plays it once."""
    if case["id"] not in _SEQUENCES:
        _SEQUENCES[case["id"]] = load(case)
    return _SEQUENCES[case["id"]]


ORACLE = Oracle("kubelet-admission", load_once, replay, agrees)


@each_file("kubelet-admission")
def test_kubelet_admission_is_replayed_exactly(file: Path, conforms: Conforms) -> None:
    conforms(ORACLE, file)


@each_file("kubelet-admission")
def test_kubelet_admission_with_the_full_configuration_known(file: Path, record_property: Any) -> None:
    """Never a pod that the kubelet refuses, and hardly one missed that it admits."""
    score = Score()
    for case in cases(file):
        judge(load_once(case), with_full_configuration, score)
    record_property("conformance", f"{file.name}, configuration known: {str(score).splitlines()[0]}")
    assert score.admits
    assert not score.wrong_yes, str(score)
    assert score.wrong_no.total() <= 0.02 * score.admits, str(score)
    assert not score.wrong_charges, score.wrong_charges


@each_file("kubelet-admission")
def test_kubelet_admission_with_published_amounts_only(file: Path, record_property: Any) -> None:
    """Never a pod that the kubelet refuses; how many wait for that is measured and named."""
    score = Score()
    for case in cases(file):
        judge(load_once(case), with_published_amounts, score)
    first, second = str(score).splitlines()[:2]
    record_property("conformance", f"{file.name}, amounts published: {first}; {second}")
    assert score.admits
    assert not score.wrong_yes, str(score)
    assert score.wrong_no.total() <= 0.3 * score.admits, str(score)
    assert score.wrong_no_classes["estimates"] <= 0.03 * score.admits, str(score)
    assert score.wrong_charges.total() <= 0.005 * score.admits, score.wrong_charges


@each_file("kubelet-admission")
def test_kubelet_admission_with_cpu_options_published(file: Path, record_property: Any) -> None:
    """Publishing the CPU manager's policy and options makes most of the careful refusals unnecessary."""
    score = Score()
    for case in cases(file):
        judge(load_once(case), with_published_cpu_options, score)
    first, second = str(score).splitlines()[:2]
    record_property("conformance", f"{file.name}, CPU options published: {first}; {second}")
    assert score.admits
    assert not score.wrong_yes, str(score)
    assert score.wrong_no.total() <= 0.2 * score.admits, str(score)


@each_file("kubelet-cpu")
def test_kubelet_cpu(file: Path, conforms: Conforms) -> None:
    conforms(kubelet_cpu.ORACLE, file)


@each_file("kubelet-tm")
def test_kubelet_tm(file: Path, conforms: Conforms) -> None:
    conforms(kubelet_tm.ORACLE, file)
