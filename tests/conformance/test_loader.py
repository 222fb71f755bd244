"""The comparison itself: it must see differences, and excuse only what is written down."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.deviations import Deviation, documented
from tests.conformance.vectors import Case, Oracle, compare, each_file, files_of, folder


def _load(case: Case) -> int:
    return int(case["in"])


def _agrees(case: Case, answer: int) -> str | None:
    return None if answer == case["out"] else f"expected {case['out']}, answered {answer}"


def _explains(case: Mapping[str, Any], answer: int) -> bool:
    return (case["in"], answer) == (2, 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three cases, of which successor numbers answer the first as recorded."""
    path = tmp_path / "toy-random.jsonl"
    path.write_text("\n".join(json.dumps({"id": f"c{i}", "in": i, "out": out}) for i, out in ((1, 2), (2, 5), (3, 9))))
    return path


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A document with one row."""
    document = tmp_path / "deviations.md"
    document.write_text("| row | why |\n| --- | --- |\n| `two-is-odd` | because |\n")
    monkeypatch.setattr("tests.conformance.vectors.documented", lambda: documented(document))


def test_differences_are_counted_and_told(file: Path) -> None:
    tally = compare(Oracle("toy", _load, lambda given: given + 1, _agrees), file)
    assert tally.report() == (
        "toy-random.jsonl: 1/3 agreed\n  c2: expected 5, answered 3\n  c3: expected 9, answered 4"
    )


@pytest.mark.usefixtures("rows")
def test_a_written_row_excuses_its_own_cases_only(file: Path) -> None:
    excuse = Deviation("two-is-odd", _explains)
    tally = compare(Oracle("toy", _load, lambda given: given + 1, _agrees, (excuse,)), file)
    assert (str(tally), len(tally.differences)) == ("toy-random.jsonl: 1/3 agreed, 1 by `two-is-odd`", 1)


@pytest.mark.usefixtures("rows")
def test_an_unwritten_row_excuses_nothing(file: Path) -> None:
    excuse = Deviation("not-written", _explains)
    assert len(compare(Oracle("toy", _load, lambda given: given + 1, _agrees, (excuse,)), file).differences) == 2


def test_an_error_names_its_case(file: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        compare(Oracle("toy", _load, lambda given: given // 0, _agrees), file)
    assert caught.value.__notes__ == ["in case c1 of toy-random.jsonl"]


def test_files_are_found_by_the_oracles_whole_name(tmp_path: Path) -> None:
    for name in ("toy", "toy-random", "toybox-random", "other"):
        (tmp_path / f"{name}.jsonl").touch()
    assert [path.name for path in files_of("toy", tmp_path)] == ["toy-random.jsonl", "toy.jsonl"]


@pytest.mark.parametrize("existing", [True, False], ids=["empty-folder", "no-such-folder"])
def test_a_named_folder_without_answers_reaches_the_test(
    existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path if existing else tmp_path / "absent"
    monkeypatch.setenv("KOORD_NUMA_VECTORS", str(where))
    (parameter,) = each_file("toy").args[1]
    assert (parameter.values, parameter.marks) == ((where,), ())


def test_an_absent_oracle_is_skipped_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOORD_NUMA_SHARED", str(tmp_path.parent))
    monkeypatch.setenv("KOORD_NUMA_VECTORS", "")
    (tmp_path.parent / "vectors").mkdir(exist_ok=True)
    (tmp_path.parent / "vectors" / "other-random.jsonl").touch()
    (parameter,) = each_file("toy").args[1]
    assert folder() == tmp_path.parent / "vectors"
    assert [mark.kwargs for mark in parameter.marks] == [{"reason": "no file toy*.jsonl in vectors"}]
