"""How much the tests of the node agent fuzz, and where their trees of files are."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

IN_MEMORY: Final = Path("/dev/shm")
ENOUGH: Final = 1 << 30
"""Bytes: containers often have 64 MiB there."""


@pytest.fixture
def fuzz_rounds() -> int:
    """Damaged inputs a test: few in every run of the suite, more when asked for (``KOORD_NUMA_FUZZ=1200`` makes 10,000)."""
    return int(os.environ.get("KOORD_NUMA_FUZZ", "60"))


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where that has room: a machine's sysfs has thousands of small files, on which a disk spends most of the time here."""
    if not IN_MEMORY.is_dir() or shutil.disk_usage(IN_MEMORY).free < ENOUGH:
        yield tmp_path
        return
    with TemporaryDirectory(dir=IN_MEMORY, prefix="koord-numa-") as folder:
        yield Path(folder)
