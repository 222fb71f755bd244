"""Number of fuzz examples for the tests of the node agent."""

import os

import pytest


@pytest.fixture
def fuzz_rounds() -> int:
    """Damaged inputs a test: few in every run of the suite, more when asked for (``KOORD_NUMA_FUZZ=1200`` makes 10,000)."""
    return int(os.environ.get("KOORD_NUMA_FUZZ", "60"))
