"""The sentence for a pod that fits nowhere. Words come from ``core.explain``; this only chooses them."""

from koord_numa.core.explain import explain
from koord_numa.core.verdicts import Unschedulable


def why_everywhere(verdict: Unschedulable) -> str:
    """kube-scheduler's sentence with numbers, or what to say when there is no node at all."""
    if not verdict.rejections:
        return "0/0 nodes are available: no node is known."
    return explain(verdict.rejections)


def with_remark(why: str, remark: str) -> str:
    """The remark comes right after the first sentence, before lines about single nodes."""
    if not remark:
        return why
    first, line, rest = why.partition("\n")
    return f"{first} {remark}{line}{rest}"
