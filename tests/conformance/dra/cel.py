"""Device selectors against the recorded answers of Kubernetes' CEL environment. Which texts errors have is not compared."""

import re
from dataclasses import dataclass

from koord_numa.core.cel.program import CelDevice, compile_selector
from koord_numa.core.cel.values import CelError, CompileError
from koord_numa.wire.resource_slices import parse_resource_slice
from tests.conformance.deviations import Deviation
from tests.conformance.vectors import Case, Oracle


@dataclass(frozen=True)
class Question:
    """An expression and a device."""

    expression: str
    device: CelDevice


def load(case: Case) -> Question:
    """The device is read as one of a published slice."""
    device = {key: value for key, value in case["device"].items() if key != "driver"}
    spec = {"driver": case["device"]["driver"], "pool": {"name": "p"}, "devices": [{"name": "d", **device}]}
    parts = parse_resource_slice({"metadata": {"name": "s"}, "spec": spec}).parts
    assert parts is not None
    return Question(case["expression"], parts.devices[0].cel)


def answer(given: Question) -> str | bool:
    """True, false, or the kind of error."""
    try:
        return compile_selector(given.expression).matches(given.device)
    except CompileError:
        return "compileError"
    except CelError:
        return "runtimeError"


def agrees(case: Case, ours: str | bool) -> str | None:
    """A match must be the same, an error of the same kind."""
    recorded = (
        case["match"] if "match" in case else next(kind for kind in ("compileError", "runtimeError") if kind in case)
    )
    return None if ours is recorded or ours == recorded else f"{case['expression']}: {ours}, recorded {recorded}"


def _unreadable(case: Case, ours: str | bool) -> bool:
    """Return true if upstream fails for an attribute that the expression need not read, or for a loop over an attribute."""
    if "expression of type 'any' cannot be range of a comprehension" in case.get("compileError", ""):
        return ours != "compileError"
    return bool(re.search("unsupported attribute value|parse semantic version", case.get("runtimeError", ""))) and (
        isinstance(ours, bool) or ours == "runtimeError"
    )


ORACLE = Oracle("dra-cel", load, answer, agrees, (Deviation("unreadable-attributes", _unreadable),))
