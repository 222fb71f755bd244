"""Koordinator's resource manager: how its recorded answers compare with ours."""

from collections.abc import Mapping
from typing import Any

from koord_numa.core.numa.hints import Hint
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from tests.conformance.deviations import Deviation
from tests.conformance.koordinator.rm_cases import Answer, answer, load
from tests.conformance.split_rules import (
    election_differs,
    on_as_few_numa_nodes,
    split_in_another_order,
    split_in_whole_cpus,
)
from tests.conformance.vectors import Case, Oracle


def agrees(case: Case, found: Answer) -> str | None:
    """Recorded and ours alike: hints, the elected set, amounts and CPUs; what was elected is what a merge of all hints gives."""
    out = case["out"]
    if found.question.what != "allocate":
        ours = {
            name: [[h.mask, int(h.preferred), int(h.unsatisfied), h.score] for h in h_]
            for name, h_ in found.hints.items()
        }
        if ours != out["hints"]:
            return f"hints: recorded {out['hints']}, ours {ours}"
    if found.elected is not None and found.merged is not None:
        best, merged = out["best"], found.merged
        recorded = (best["mask"], best["preferred"], best["unsatisfied"], best["score"], best["admit"])
        if recorded != (*_fields(merged.hint), merged.admitted):
            return f"merge: recorded {recorded}, ours {merged}"
        if difference := election_differs(found.elected, merged):
            return difference
    return None if _recorded(out) == _ours(found) else f"allocation: recorded {_recorded(out)}, ours {_ours(found)}"


def _fields(hint: Hint) -> tuple[int | None, bool, bool, int]:
    return (hint.mask, hint.preferred, hint.unsatisfied, hint.score)


def _recorded(out: Mapping[str, Any]) -> object:
    alloc = out.get("alloc")
    if alloc is None:
        return None
    if alloc["code"] != "Success":
        reasons = [r for r in alloc["reasons"] if r.startswith("Insufficient NUMA")]
        return tuple(r.removeprefix("Insufficient NUMA ") for r in reasons)
    return (alloc["cpus"], [(entry["node"], entry["res"]) for entry in alloc["numa"]])


def _ours(found: Answer) -> object:
    if found.question.what == "hints":
        return None
    if not isinstance(found.allocated, Placement):
        return _short(found.allocated) if found.allocated else ()
    return (str(found.allocated.cpus), [(numa, dict(amounts)) for numa, amounts in found.allocated.numa])


def _short(refused: Rejection) -> tuple[str, ...]:
    """The resources that the NUMA nodes are short of; none where CPUs of the right shape are."""
    if refused.reason is not Reason.RESOURCES:
        return ()
    return tuple(refused.message.removeprefix("Insufficient NUMA ").split(" and "))


ORACLE = Oracle(
    "koord-rm",
    load,
    answer,
    agrees,
    (
        Deviation("split-order", split_in_another_order),
        Deviation("whole-cpu-shares", split_in_whole_cpus),
        Deviation("as-few-numa-nodes", on_as_few_numa_nodes),
    ),
)
