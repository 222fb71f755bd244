"""
Recorded answers of other implementations: where they are, how they are read, and how ours are compared with them.

An adapter module per oracle makes one ``Oracle``; its test is two lines:

    @each_file("koord-cpu")
    def test_koord_cpu(file: Path, conforms: Conforms) -> None:
        conforms(koord_cpu.ORACLE, file)

The folder is ``KOORD_NUMA_VECTORS``; else ``vectors`` in ``KOORD_NUMA_SHARED``; else ``../shared/vectors`` beside the
repository; else the small selection that comes with the tests. Files are found by the oracle's name, never by a list.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import orjson
import pytest

from tests.conformance.deviations import Deviation, documented

Given = TypeVar("Given")
Answer = TypeVar("Answer")
Case = Mapping[str, Any]

REPOSITORY: Final = Path(__file__).parents[2]
SELECTION: Final = Path(__file__).parent / "selection"
SHOWN: Final = 8
"""Maximum number of differences that a failure prints in full."""


@dataclass(frozen=True, slots=True)
class Oracle(Generic[Given, Answer]):
    """Conversion of an oracle's cases to this package's types, the answer, and the comparison."""

    name: str  # the beginning of its files' names
    load: Callable[[Case], Given]
    answer: Callable[[Given], Answer]
    agrees: Callable[[Case, Answer], str | None]  # None, or the difference in one readable line
    deviations: tuple[Deviation[Answer], ...] = ()


@dataclass(slots=True)
class Tally:
    """Result of the comparison with one file."""

    file: str
    total: int = 0
    agreed: int = 0
    deviated: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """``koord-cpu-random.jsonl: 1200/1200 agreed`` and what was excused."""
        rows = "".join(f", {count} by `{row}`" for row, count in sorted(self.deviated.items()))
        return f"{self.file}: {self.agreed}/{self.total} agreed{rows}"

    def report(self) -> str:
        """The summary and the first differences."""
        lines = [str(self), *self.differences[:SHOWN]]
        if len(self.differences) > SHOWN:
            lines.append(f"... and {len(self.differences) - SHOWN} more")
        return "\n".join(lines)


class Conforms(Protocol):
    """The fixture that compares a file with our answers, records the tally and fails on a difference."""

    def __call__(self, oracle: Oracle[Any, Any], file: Path) -> None: ...


def folder() -> Path:
    """Return the folder of the recorded answers. It need not exist."""
    if given := os.environ.get("KOORD_NUMA_VECTORS"):
        return Path(given)
    if shared := os.environ.get("KOORD_NUMA_SHARED"):
        return Path(shared) / "vectors"
    beside = REPOSITORY.parent / "shared" / "vectors"
    return beside if beside.is_dir() else SELECTION


def files_of(oracle: str, where: Path) -> list[Path]:
    """The oracle's files: ``<oracle>.jsonl`` and ``<oracle>-*.jsonl``."""
    return sorted(file for file in where.glob("*.jsonl") if file.stem == oracle or file.stem.startswith(f"{oracle}-"))


def each_file(oracle: str) -> pytest.MarkDecorator:
    """
    Run the test once for every file of the oracle, as its argument ``file``.

    Without such a file the test is skipped; an empty folder is handed to the test, which fails on it.
    """
    where = folder()
    if where.is_dir() and not any(where.glob("*.jsonl")):
        return pytest.mark.parametrize("file", [pytest.param(where, id="empty-folder")])
    if not where.is_dir() and "KOORD_NUMA_VECTORS" in os.environ:
        return pytest.mark.parametrize("file", [pytest.param(where, id="no-such-folder")])
    found = [pytest.param(file, id=file.stem) for file in files_of(oracle, where)]
    missing = pytest.mark.skip(reason=f"no file {oracle}*.jsonl in {where.name}")
    return pytest.mark.parametrize("file", found or [pytest.param(where, id="no-file", marks=missing)])


def cases(file: Path) -> Iterator[Case]:
    """The cases of a file, one JSON object a line."""
    with file.open() as lines:
        for line in lines:
            if line.strip():
                yield orjson.loads(line)


def compare(oracle: Oracle[Given, Answer], file: Path) -> Tally:
    """Answer every case of the file. An error of ours is not an answer: it is raised with the case's name."""
    tally = Tally(file.name)
    rows = documented()
    excuses = [deviation for deviation in oracle.deviations if deviation.row in rows]
    for case in cases(file):
        tally.total += 1
        try:
            answer = oracle.answer(oracle.load(case))
            difference = oracle.agrees(case, answer)
            excuse = next((it for it in excuses if it.explains(case, answer)), None) if difference else None
        except Exception as error:
            error.add_note(f"in case {case['id']} of {file.name}")
            raise
        if difference is None:
            tally.agreed += 1
        elif excuse is not None:
            tally.deviated[excuse.row] += 1
        else:
            tally.differences.append(f"  {case['id']}: {difference}")
    return tally
