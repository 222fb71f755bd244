"""Parse RebindResources and write their status."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.rebind.layout import NumaAmounts
from koord_numa.core.rebind.plan import (
    DEFAULT_DEADLINE,
    NodeFigures,
    RebindAction,
    RebindAnswer,
    RebindMove,
    RebindPhase,
    RebindRequest,
)
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.parsing import EnumReader, Int64, Problems, Strict, head, read_time, version
from koord_numa.wire.pod_annotations import quantities

ACTIONS: Final = EnumReader({action.value: action for action in RebindAction})
PHASES: Final = EnumReader({phase.value: phase for phase in RebindPhase})

Deadline = Annotated[int, Meta(ge=1, le=2**63 - 1)]
TtlSeconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]

PLAN_SHOWN: Final = 500
"""Maximum entries of a plan that are read back."""

LONGEST_CPU_LIST: Final = 4096

CONDITION: Final = "Complete"
"""Type of the only condition: True if the rebind succeeded, False if it failed, Unknown before."""


class RebindSpec(Strict):
    """The spec of a RebindResource."""

    node_name: str | None = None
    rebind_action: str | None = None
    deadline_in_seconds: Deadline | None = None
    dry_run: bool | None = None
    ttl_seconds_after_finished: TtlSeconds | None = None
    move_memory: bool | None = None


class RebindStatus(Strict):
    """The previous status of a RebindResource."""

    phase: str | None = None
    observed_generation: Int64 | None = None
    start_time: str | None = None
    update_timestamp: str | None = None


def parse_rebind(obj: Mapping[str, Any]) -> RebindRequest:
    """
    Parse a RebindResource. ``RebindRequest.problem`` names malformed parts.

    Raises ``WireError`` only if the object has no name.
    """
    problems = Problems()
    top = head(obj, names.REBIND_KIND, problems)
    path = top.path.at("spec")
    spec = problems.part(top, "spec", RebindSpec)
    status_place = top.path.at("status")
    status = problems.part(top, "status", RebindStatus)
    started, updated = status.start_time, status.update_timestamp
    # The default is the only action.
    action = spec.rebind_action or RebindAction.REBIND_CPU.value
    # Only without another problem, which may be the reason for the missing name.
    if not problems.problem and not spec.node_name:
        problems.problem = str(path.at("nodeName").error("is missing"))
    return RebindRequest(
        name=top.name,
        uid=top.uid,
        node=spec.node_name or "",
        action=problems.collect(lambda: ACTIONS.read(action, path.at("rebindAction")), RebindAction.REBIND_CPU),
        deadline=spec.deadline_in_seconds or DEFAULT_DEADLINE,
        dry_run=bool(spec.dry_run),
        move_memory=bool(spec.move_memory),
        generation=top.metadata.generation or 0,
        created=top.created,
        phase=problems.collect(lambda: PHASES.read(status.phase or "", status_place.at("phase")), RebindPhase.UNKNOWN),
        observed_generation=status.observed_generation or 0,
        started=problems.collect(lambda: read_time(started, status_place.at("startTime")) if started else 0.0, 0.0),
        updated=problems.collect(
            lambda: read_time(updated, status_place.at("updateTimestamp")) if updated else 0.0, 0.0
        ),
        ttl=spec.ttl_seconds_after_finished,
        deleting=top.metadata.deletion_timestamp is not None,
        resource_version=version(top),
        plan=_shown_plan(top.body.get("status")),
        problem=problems.problem,
    )


def _shown_plan(status: object) -> tuple[RebindMove, ...]:
    """Return the plan in a status without malformed entries. The plan is only displayed, so it never makes a request unusable."""
    plan = status.get("plan") if isinstance(status, Mapping) else None
    entries = plan[:PLAN_SHOWN] if isinstance(plan, list) else []
    return tuple(move for entry in entries if (move := _shown_move(entry)) is not None)


def _shown_move(entry: object) -> RebindMove | None:
    if not isinstance(entry, Mapping):
        return None
    texts = [str(entry[key]) for key in ("namespace", "name", "from", "to") if isinstance(entry.get(key), str)]
    return RebindMove(*texts) if len(texts) == 4 and _are_cpus(*texts[2:]) else None


def _are_cpus(*texts: str) -> bool:
    try:
        return all(len(text) <= LONGEST_CPU_LIST and CpuSet.parse(text) is not None for text in texts)
    except ValueError:
        return False


def rebind_status(answer: RebindAnswer, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """
    Return the ``status`` as a merge patch that removes all fields without a value in the answer.

    ``before`` is the current status: the condition keeps its transition time while its state is unchanged.
    """
    state = {RebindPhase.SUCCEED: "True", RebindPhase.FAILED: "False"}.get(answer.phase, "Unknown")
    planned = answer.before is not None or bool(answer.plan)
    return {
        "phase": answer.phase.value,
        "reason": answer.reason,
        # Merge patches remove null fields and keep absent ones.
        "updateTimestamp": answer.time,
        "startTime": answer.started or None,
        "observedGeneration": answer.generation,
        "conditions": [
            {
                "type": CONDITION,
                "status": state,
                "reason": answer.phase.value or RebindPhase.UNKNOWN.value,
                "message": answer.reason,
                "lastTransitionTime": _transition((before or {}).get("conditions"), state) or answer.time,
                "observedGeneration": answer.generation,
            }
        ],
        "moves": len(answer.plan) if planned else None,
        "steps": answer.steps if planned else None,
        "plan": _moves(answer.plan) or None,
        "result": _moves(answer.result) or None,
        "stuck": list(answer.stuck) or None,
        "before": answer.before and _figures(answer.before),
        "after": answer.after and _figures(answer.after),
    }


def automatic_rebind(node: str, why: str, *, dry_run: bool) -> dict[str, Any]:
    """Return a RebindResource of the automatic rebind. The reason is an annotation. It is deleted a day after its end."""
    return {
        "apiVersion": f"{names.SCHEDULING_GROUP}/{names.REBIND_VERSION}",
        "kind": names.REBIND_KIND,
        # The API server truncates names that are too long.
        "metadata": {"generateName": f"auto-{node[:200]}-", "annotations": {names.REBIND_REASON: why}},
        "spec": {"nodeName": node, "rebindAction": "RebindCPU", "dryRun": dry_run, "ttlSecondsAfterFinished": 86_400},
    }


def with_cpus(status_text: str, cpus: CpuSet, numa: NumaAmounts | None = None) -> str:
    """
    Return the resource-status with other CPUs, and with other amounts per NUMA node if given.

    Keeps every other member, including unknown ones. Raises ``WireError`` if the text is not a JSON object.
    """
    path = FieldPath("").annotation(names.RESOURCE_STATUS)
    try:
        status = json.loads(status_text)  # unlike faster decoders, json keeps integers of any size
    except ValueError as error:
        raise path.error(f"is not JSON: {error}") from None
    if not isinstance(status, dict):
        raise path.error("is not a JSON object")
    # Go's encoding/json matches names case-insensitively: every spelling present must be changed.
    keys = [key for key in status if key.lower() == "cpuset"] or ["cpuset"]
    changed: dict[str, Any] = dict.fromkeys(keys, str(cpus))
    if numa is not None:
        spelled = [key for key in status if key.lower() == "numanoderesources"] or ["numaNodeResources"]
        changed |= {key: [{"node": node, "resources": quantities(held)} for node, held in numa] for key in spelled}
    # As Go's encoder: no spaces, and UTF-8 unescaped.
    return json.dumps({**status, **changed}, separators=(",", ":"), ensure_ascii=False)


def _figures(figures: NodeFigures) -> dict[str, Any]:
    return {
        "crossingPods": figures.crossing_pods,
        "crossings": figures.crossings,
        "splitCores": figures.split_cores,
        "conflicts": figures.conflicts,
        "largestBlocks": [{"numa": numa, "cpus": cpus} for numa, cpus in sorted(figures.largest_block.items())],
    }


def _moves(moves: Iterable[RebindMove]) -> list[dict[str, str]]:
    return [{"namespace": move.namespace, "name": move.name, "from": move.before, "to": move.after} for move in moves]


def _transition(conditions: object, state: str) -> str:
    for condition in conditions if isinstance(conditions, Sequence) else ():
        if isinstance(condition, Mapping) and condition.get("type") == CONDITION and condition.get("status") == state:
            time = condition.get("lastTransitionTime")
            return time if isinstance(time, str) else ""
    return ""
