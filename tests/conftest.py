"""Settings of all tests: no test depends on its speed, and recorded answers are counted at the end."""

import gc
import os
import shutil
import sys
import tempfile
from collections import Counter
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import tables
from tests.rights import Witness

# Images of Python often set this variable. Each worker would then compile all tests, and each process the whole package.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Machines that run tests are busy; a slow example is not a wrong one.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same few examples on every run, so that a change never fails on what it did not touch. `make chaos` draws more and new ones.
settings.register_profile("fixed", settings.get_profile("random"), derandomize=True, max_examples=25)
settings.load_profile("fixed")

TESTS = Path(__file__).parent
LONG = (
    "chaos/test_chaos.py",
    "chaos/test_devices_by_id.py",
    "chaos/test_hostile_objects.py",
    "chaos/test_image.py",
    "conformance/dra/test_cel.py",
    "conformance/koordinator/test_rm.py",
    "conformance/kube_scheduler/test_decisions.py",
    "conformance/kubelet/drawn/test_drawn.py",
    "conformance/kubelet/test_churn.py",
    "conformance/kubelet/true_state/test_followed.py",
    "docs/test_demo_document.py",
    "e2e/test_claims.py",
    "e2e/test_processes.py",
    "e2e/test_rack.py",
    "wire/test_hostile.py",
)
"""Modules with a test of more than six seconds. The workers of a parallel run begin with them and end with short tests."""

FEW = 15
"""Examples of laws in ``make test``."""

IN_MEMORY = Path("/dev/shm")
ENOUGH = 1 << 30
"""Bytes: containers often have 64 MiB there."""

CONFORMANCE = "conformance"
"""The property under which the comparison with a file of recorded answers leaves its tally."""


def pytest_configure(config: pytest.Config) -> None:
    """
    Keep temporary files in memory, and compare the requests of the scheduler with its rights when all tests are over.

    The simulated sysfs of a rack has 10,000 small files, on which a disk costs more CPU time than the test.
    """
    if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= ENOUGH:
        os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)
    config.pluginmanager.register(Witness())
    tables.only[:] = config.getoption("--row")
    tables.all_seeds = config.getoption("--law-examples") > FEW


def pytest_addoption(parser: pytest.Parser) -> None:
    """The size of random runs: `make chaos` asks for more than the defaults."""
    parser.addoption("--chaos-seeds", type=int, default=1, help="how many random runs")
    parser.addoption("--chaos-pods", type=int, default=300, help="pods in each of them; a fault for every five")
    parser.addoption(
        "--hostile-objects", type=int, default=600, help="objects that mean no good, through the whole runtime"
    )
    parser.addoption(
        "--law-examples",
        type=int,
        default=FEW,
        help=f"lives of kubelet-owned nodes; above {FEW}, new ones, and all seeds of sampled tests",
    )
    parser.addoption("--stories", type=int, default=100, help="random stories of late events and preemption")
    parser.addoption("--shapes", type=int, default=240, help="pods of ever new shapes in the test of growth")
    parser.addoption("--row", action="append", default=[], help="only rows of tables with this text in their name")
    parser.addoption("--lifecycles", type=int, default=1000, help="pods that come and go in the tests of growth")
    parser.addoption("--all-rights", action="store_true", help="fail for a granted right that no test uses")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A random run for each seed."""
    for name, values in (
        ("chaos_seed", range(metafunc.config.getoption("--chaos-seeds"))),
        ("chaos_pods", (metafunc.config.getoption("--chaos-pods"),)),
    ):
        if name in metafunc.fixturenames:
            what = name.removeprefix("chaos_")
            metafunc.parametrize(name, values, ids=[f"{what}-{value}" for value in values])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the seeds of ``make test``, and order the tests for the workers of a parallel run."""
    if config.getoption("--law-examples") <= FEW:
        _leave_out_seeds(config, items)
    if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        items[:] = _long_first(items, int(workers))


def _leave_out_seeds(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the seeds of a test marked ``sampled(n)``, run every n-th one; ``make chaos`` runs all."""
    seen: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("sampled")
        name = item.nodeid.partition("[")[0]
        (left_out if marker is not None and seen[name] % marker.args[0] else kept).append(item)
        seen[name] += 1
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _long_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the tests in ``workers`` parts of the same size, each of which begins with a share of the long modules."""
    long = {TESTS / name for name in LONG}
    if missing := sorted(str(path) for path in long if not path.is_file()):
        raise pytest.UsageError(f"no such files of long tests: {', '.join(missing)}")
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, (_, module) in enumerate(groupby((it for it in items if it.path in long), key=attrgetter("path"))):
        shares[number % workers] += module
    others = iter([it for it in items if it.path not in long])
    ordered: list[pytest.Item] = []
    for number, share in enumerate(shares):
        size = len(items) // workers + (number < len(items) % workers)
        ordered += [*share, *islice(others, max(0, size - len(share)))]
    return [*ordered, *others]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Modules and thousands of collected tests stay until the end: garbage collections during the tests need not visit them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Collect garbage rarely, which saves 5 to 10 % of the CPU time. An operator that a test runs sets its own thresholds."""
    gc.set_threshold(50_000, 20, 50)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line per file of recorded answers: agreed / total."""
    reports = [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]
    lines = [text for report in reports for name, text in report.user_properties if name == CONFORMANCE]
    if lines:
        terminalreporter.section("recorded answers")
        for line in sorted(lines):
            terminalreporter.write_line(line)
