"""Turns refusals into the sentence that kube-scheduler's readers know, and into a bounded number of lines with numbers."""

from collections.abc import Mapping

from koord_numa.core.verdicts import Rejection


def explain(rejections: Mapping[str, Rejection], *, lines: int = 5) -> str:
    """``0/8 nodes are available: 3 ..., 5 ....`` and up to ``lines`` lines about single nodes. The counts add up to all nodes."""
    raise NotImplementedError
