"""PriorityClasses, and what the API server's admission makes of them in a new pod: a pod that exists has it in its spec already."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koord_numa.wire.errors import FieldPath
from koord_numa.wire.metadata import head
from koord_numa.wire.parsing import Int64, Problems, Strict, read


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass. ``global_default``: pods that name none get it."""

    name: str
    value: int
    preempts: str = "PreemptLowerPriority"
    global_default: bool = False
    problem: str = ""


BUILT_IN: Final = (
    PriorityClass("system-cluster-critical", 2_000_000_000),
    PriorityClass("system-node-critical", 2_000_001_000),
)
"""Every API server makes these (scheduling/v1, ``SystemPriorityClasses``)."""


class PriorityClassModel(Strict):
    """A PriorityClass has no spec; its fields stand at the top."""

    value: Int64 = 0
    global_default: bool | None = None
    preemption_policy: str | None = None


def parse_priority_class(obj: Mapping[str, Any]) -> PriorityClass:
    """A PriorityClass. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "PriorityClass", problems)
    model = problems.collect(lambda: read(PriorityClassModel, top.body, top.path), PriorityClassModel())
    preempts = model.preemption_policy or "PreemptLowerPriority"
    return PriorityClass(top.name, model.value, preempts, bool(model.global_default), problems.problem)


def with_priority(pod: Mapping[str, Any], priority_classes: Iterable[PriorityClass]) -> Mapping[str, Any]:
    """
    The new pod with the priority and the preemption policy of its class, as the API server's Priority admission writes them.

    A priority that stands there already is left alone. Raises ``WireError`` when there is no class of that name.
    """
    spec = pod.get("spec")
    if not isinstance(spec, Mapping) or spec.get("priority") is not None:
        return pod
    # Built-in ones last, as a file may define them too.
    known = [*(one for one in priority_classes if not one.problem), *BUILT_IN]
    name = spec.get("priorityClassName")
    if name:
        chosen = next((one for one in known if one.name == name), None)
        if chosen is None:
            raise FieldPath("Pod").at("spec.priorityClassName").error(f"there is no PriorityClass {name}")
    else:
        # Of several global defaults the lowest wins (admission/plugin/priority, ``getDefaultPriorityClass``).
        chosen = min(
            (one for one in known if one.global_default),
            key=lambda one: (one.value, one.name),
            default=None,
        )
    if chosen is None:
        return pod
    # ``spec`` after the policy, so that one that is written stays.
    admitted = {"preemptionPolicy": chosen.preempts, **spec, "priority": chosen.value, "priorityClassName": chosen.name}
    return {**pod, "spec": admitted}
