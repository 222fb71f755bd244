"""The annotations that tell a node agent what a pod holds: field names and shapes exactly as Koordinator's agent reads them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Assignment, Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from koord_numa.core.quantity import format_amount
from koord_numa.core.resources import ResourceList
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, WireError
from koord_numa.wire.parsing import load_json
from koord_numa.wire.pod.pod_annotations import LONGEST_SHARED

_REQUIRED: Final = "requiredCPUBindPolicy"
_PREFERRED: Final = "preferredCPUBindPolicy"


def resource_status(pod: Pod, placement: Placement) -> dict[str, str]:
    """
    The annotations to write with the binding (``ports.AnnotationWriter``).

    ``resource-status`` when the pod holds CPUs, NUMA amounts or shared pools of its own, or an empty one when the pod
    carries the status of another pod. ``resource-spec`` when the policy in force has to be filled in, as Koordinator's
    PreBind does. ``koord-numa/numa-nodes`` names the chosen NUMA nodes for people, ``koord-numa/explores`` the kubelet options that the
    pod's admission will tell about.
    """
    written: dict[str, str] = {}
    if placement.assignment != Assignment() or pod.stale_status:
        written[names.RESOURCE_STATUS] = status_text(placement.assignment)
    if placement.cpus and placement.bind is not CpuBindPolicy.NONE:
        fill_in = _filled_in if len(pod.spec_text) <= LONGEST_SHARED else _filled_in.__wrapped__
        spec = fill_in(pod.spec_text, placement.bind, placement.bind_required)
        if spec is not None:
            written[names.RESOURCE_SPEC] = spec
    if placement.mask:
        written[names.NUMA_NODES] = str(CpuSet(placement.mask))
    if placement.explores:
        written[names.EXPLORES] = ",".join(placement.explores)
    return written


def status_text(held: Assignment) -> str:
    """
    The JSON of ``resource-status``; parts that are empty are left out.

    A shared pool is named by socket and NUMA node only: its CPUs are chosen by the agent, as the CPU orchestration
    proposal says.
    """
    status: dict[str, Any] = {}
    if held.cpus:
        status["cpuset"] = str(held.cpus)
    if held.numa:
        status["numaNodeResources"] = [
            {"node": numa, "resources": quantities(amounts)} for numa, amounts in sorted(held.numa, key=_first)
        ]
    if held.shared_pools:
        status["cpuSharedPools"] = [{"socket": pool.socket, "node": pool.numa} for pool in held.shared_pools]
    return orjson.dumps(status).decode()


def quantities(amounts: ResourceList) -> dict[str, str]:
    """Amounts as Kubernetes quantities, in the order of their names."""
    return {name: format_amount(name, amounts[name]) for name in sorted(amounts)}


@lru_cache(maxsize=2048)
def _filled_in(text: str, bind: CpuBindPolicy, required: bool) -> str | None:
    """The resource-spec with the policy in force, or ``None`` when it says so already. Everything else in it is kept."""
    spec = _spec(text)
    keys = {key.lower(): key for key in spec}  # Go's encoding/json matches names without regard to case
    require, prefer = (keys.get(field.lower(), field) for field in (_REQUIRED, _PREFERRED))
    filled: dict[str, str] = {}
    if required and (spec.get(require) or CpuBindPolicy.DEFAULT) == CpuBindPolicy.DEFAULT:
        filled[require] = bind.value
    if spec.get(prefer) == CpuBindPolicy.DEFAULT or not (spec.get(prefer) or spec.get(require) or filled):
        filled[prefer] = bind.value
    return orjson.dumps({**spec, **filled}).decode() if filled else None


def _spec(text: str) -> dict[str, Any]:
    try:
        spec = load_json(text or "{}", FieldPath("").annotation(names.RESOURCE_SPEC))
    except WireError:
        return {}  # such a pod is never placed; a rebind of one that runs must not trip over it
    return spec if isinstance(spec, dict) else {}


def _first(entry: tuple[int, Mapping[str, int]]) -> int:
    return entry[0]
