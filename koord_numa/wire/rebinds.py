"""RebindResource: what is asked of a node's CPUs, and the status in which we answer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field

from koord_numa.core.rebind_request import (
    DEFAULT_DEADLINE,
    RebindAction,
    RebindMove,
    RebindPhase,
    RebindRequest,
)
from koord_numa.wire import names
from koord_numa.wire.metadata import head, version
from koord_numa.wire.reading import Findings, Int64, Strict, Words, read

ACTIONS: Final = Words({action.value: action for action in RebindAction})
PHASES: Final = Words({phase.value: phase for phase in RebindPhase})

Deadline = Annotated[int, Field(ge=1, le=2**63 - 1)]

CONDITION: Final = "Complete"
"""The type of the one condition: True when the rebind succeeded, False when it failed, Unknown until then."""


class RebindSpec(Strict):
    """What is asked."""

    node_name: str | None = None
    rebind_action: str | None = None
    deadline_in_seconds: Deadline | None = None
    dry_run: bool | None = None


class RebindStatus(Strict):
    """What was answered before."""

    phase: str | None = None
    observed_generation: Int64 | None = None


@dataclass(frozen=True, slots=True)
class RebindAnswer:
    """What to say about a rebind. ``time`` is RFC 3339; ``plan`` may be shown cut, ``moves`` counts all of it."""

    phase: RebindPhase
    reason: str
    time: str
    generation: int
    plan: tuple[RebindMove, ...] = ()
    moves: int = 0


def parse_rebind(obj: Mapping[str, Any]) -> RebindRequest:
    """
    The request in a RebindResource; ``RebindRequest.problem`` names what is malformed.

    Raises ``WireError`` only when the object has no name.
    """
    findings = Findings()
    top = head(obj, names.REBIND_KIND, findings)
    place = top.place.at("spec")
    spec = findings.of(lambda: read(RebindSpec, top.body.get("spec") or {}, place), RebindSpec())
    status_place = top.place.at("status")
    status = findings.of(lambda: read(RebindStatus, top.body.get("status") or {}, status_place), RebindStatus())
    action = spec.rebind_action or RebindAction.REBIND_CPU.value
    if not findings.problem and not spec.node_name:
        findings.problem = str(place.at("nodeName").error("is missing"))
    return RebindRequest(
        name=top.name,
        uid=top.uid,
        node=spec.node_name or "",
        action=findings.of(lambda: ACTIONS.read(action, place.at("rebindAction")), RebindAction.REBIND_CPU),
        deadline=spec.deadline_in_seconds or DEFAULT_DEADLINE,
        dry_run=bool(spec.dry_run),
        generation=top.metadata.generation or 0,
        created=top.created,
        phase=findings.of(lambda: PHASES.read(status.phase or "", status_place.at("phase")), RebindPhase.UNKNOWN),
        observed_generation=status.observed_generation or 0,
        deleting=top.metadata.deletion_timestamp is not None,
        resource_version=version(top),
        problem=findings.problem,
    )


def rebind_status(answer: RebindAnswer, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """
    The ``status`` to write, as a merge patch replaces it.

    ``before`` is the status as it is: the condition keeps its transition time while it keeps its answer.
    """
    state = {RebindPhase.SUCCEED: "True", RebindPhase.FAILED: "False"}.get(answer.phase, "Unknown")
    status: dict[str, Any] = {
        "phase": answer.phase.value,
        "reason": answer.reason,
        "updateTimestamp": answer.time,
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
    }
    if answer.plan or answer.moves:
        status["plan"] = _plan(answer.plan)
        status["moves"] = max(answer.moves, len(answer.plan))
    return status


def _plan(moves: Iterable[RebindMove]) -> list[dict[str, str]]:
    return [{"namespace": move.namespace, "name": move.name, "from": move.before, "to": move.after} for move in moves]


def _transition(conditions: object, state: str) -> str:
    for condition in conditions if isinstance(conditions, Sequence) else ():
        if isinstance(condition, Mapping) and condition.get("type") == CONDITION and condition.get("status") == state:
            time = condition.get("lastTransitionTime")
            return time if isinstance(time, str) else ""
    return ""
