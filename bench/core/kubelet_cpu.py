"""Assigning CPUs as the kubelet does: time per decision."""

from collections.abc import Iterator

from bench.figure import Figure
from bench.vectors import oracle_figures
from tests.conformance.kubelet import cpu as kubelet_cpu


def figures() -> Iterator[Figure]:
    """Mean, median and p99 beside Go's."""
    return oracle_figures(kubelet_cpu.ORACLE)
