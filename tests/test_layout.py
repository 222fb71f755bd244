"""Files and folders stay small enough to be read: no file over 300 lines, no folder of more than 15 modules."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
LONGEST: Final = 300
"""Lines of a file."""

FULLEST: Final = 15
"""Modules of a folder, its ``__init__.py`` not counted."""


def modules(folder: str) -> Iterator[Path]:
    """The modules that people write, below a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            yield path.relative_to(ROOT)


@pytest.mark.parametrize("folder", ["koord_numa", "tests", "bench"])
def test_no_file_is_too_long(folder: str) -> None:
    lengths = {str(path): (ROOT / path).read_bytes().count(b"\n") for path in modules(folder)}
    assert len(lengths) > FULLEST
    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}


@pytest.mark.parametrize("folder", ["koord_numa", "tests", "bench"])
def test_no_folder_is_too_full(folder: str) -> None:
    counts = Counter(str(path.parent) for path in modules(folder) if path.name != "__init__.py")
    assert {path: count for path, count in counts.items() if count > FULLEST} == {}
