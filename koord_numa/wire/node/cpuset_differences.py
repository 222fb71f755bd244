"""``koord-numa/cpuset-differences`` of a topology: pods that run on other CPUs than decided, for people to see."""

from collections.abc import Mapping
from typing import Final

from pydantic import TypeAdapter

from koord_numa.core.objects.node import CpusetDifference
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, WireError
from koord_numa.wire.parsing import GoJson, load_json, read_as
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


_DIFFERENCES: Final = TypeAdapter(dict[str, DifferenceModel] | None)
