"""``koord-numa/cpuset-differences`` and ``koord-numa/pinning`` of a topology: what the node agent reports of cpusets, for people to see."""

from collections.abc import Mapping
from typing import Final

from pydantic import TypeAdapter

from koord_numa.core.objects.node import CpusetDifference, Pinning
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, WireError
from koord_numa.wire.parsing import GoJson, load_json, read_as, read_json
from koord_numa.wire.pod.pod_annotations import cpu_list


class DifferenceModel(GoJson):
    """One pod."""

    decided: str = ""
    observed: str = ""
    why: str = ""


def cpuset_differences(annotations: Mapping[str, str], path: FieldPath) -> dict[str, CpusetDifference]:
    """The differences by ``namespace/name``. No decision depends on them, so a malformed annotation says nothing and spoils nothing."""
    text = annotations.get(names.CPUSET_DIFFERENCES)
    if text is None:
        return {}
    path = path.annotation(names.CPUSET_DIFFERENCES)
    try:
        found = read_as(_DIFFERENCES, load_json(text, path), path) or {}
        return {
            pod: CpusetDifference(cpu_list(one.decided, path), cpu_list(one.observed, path), one.why)
            for pod, one in sorted(found.items())
        }
    except WireError:
        return {}


class PinningModel(GoJson):
    """How containers get their CPUs."""

    through: str = ""
    containers: int = 0
    seconds: float = 0.0


def pinning(annotations: Mapping[str, str], path: FieldPath) -> Pinning | None:
    """How the node agent gives containers their CPUs, for people to see; a malformed annotation means nothing and spoils nothing."""
    text = annotations.get(names.PINNING)
    if text is None:
        return None
    try:
        found = read_json(PinningModel, text, path.annotation(names.PINNING))
    except WireError:
        return None
    # Any author of the annotation may write any text and any number.
    if found.through not in _WAYS or found.containers < 0 or not 0 <= found.seconds < _LONGEST:
        return None
    return Pinning(found.through, found.containers, found.seconds)


_WAYS: Final = ("NRI", "CRI", "cgroups")
_LONGEST: Final = 1e9  # seconds, some thirty years
_DIFFERENCES: Final = TypeAdapter(dict[str, DifferenceModel] | None)
