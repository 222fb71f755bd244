"""What holds for all tests: no test depends on how fast it runs, and recorded answers are counted at the end."""

from typing import Any

from hypothesis import HealthCheck, settings

# Machines that run tests are busy; a slow example is not a wrong one.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

CONFORMANCE = "conformance"
"""The property under which the comparison with a file of recorded answers leaves its tally."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line a file of recorded answers: agreed / total."""
    reports = [*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())]
    lines = [text for report in reports for name, text in report.user_properties if name == CONFORMANCE]
    if lines:
        terminalreporter.section("recorded answers")
        for line in sorted(lines):
            terminalreporter.write_line(line)
