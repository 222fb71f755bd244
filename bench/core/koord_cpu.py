"""Choosing CPUs as Koordinator does: time per decision."""

from collections.abc import Iterator

from bench.figure import Figure
from bench.vectors import oracle_figures
from tests.conformance.koordinator import cpu as koord_cpu


def figures() -> Iterator[Figure]:
    """Mean, median and p99 beside Go's."""
    return oracle_figures(koord_cpu.ORACLE)
