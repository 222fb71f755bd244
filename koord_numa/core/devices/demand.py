"""
Normal form of a pod's device requests.

As `GetPodDeviceRequests` and `calcDesiredRequestsAndCountForGPU` of Koordinator's deviceshare plugin: every spelling of a
request becomes, by device type, the amounts on each device and the number of devices. Amounts that do not divide evenly
are rounded up.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from koord_numa.core.objects.devices import (
    FPGA,
    GPU,
    NO_HINT,
    RDMA,
    AllocateStrategy,
    DeviceExclusive,
    DeviceHint,
    DeviceSpec,
    PartitionSpec,
)
from koord_numa.core.objects.request import PodRequest, once_per_request
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import ValueObject

CORE: Final = "koordinator.sh/gpu-core"
MEMORY: Final = "koordinator.sh/gpu-memory"
RATIO: Final = "koordinator.sh/gpu-memory-ratio"
SHARED: Final = "koordinator.sh/gpu.shared"
PERCENT_OF_GPU: Final = "koordinator.sh/gpu"
RDMA_SHARE: Final = "koordinator.sh/rdma"
FPGA_SHARE: Final = "koordinator.sh/fpga"
NPU_CORE: Final = "huawei.com/npu-core"
NPU_CPU: Final = "huawei.com/npu-cpu"
NPU_DVPP: Final = "huawei.com/npu-dvpp"
WHOLE_GPUS: Final = frozenset({"nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu"})
FULL: Final = 100
"""Percentage of a whole device."""

_GPU_NAMES: Final = WHOLE_GPUS | {PERCENT_OF_GPU, SHARED, CORE, MEMORY, RATIO, NPU_CORE, NPU_CPU, NPU_DVPP}

TYPE_OF: Final[Mapping[str, str]] = {**dict.fromkeys(_GPU_NAMES, GPU), RDMA_SHARE: RDMA, FPGA_SHARE: FPGA}
"""Device type by resource name."""

_SHAREABLE: Final[Mapping[str, str]] = {RDMA: RDMA_SHARE, FPGA: FPGA_SHARE}

COUNTED_DEVICES: Final[Mapping[str, int]] = {
    **dict.fromkeys(WHOLE_GPUS, 1),
    **dict.fromkeys((PERCENT_OF_GPU, RDMA_SHARE, FPGA_SHARE), FULL),
}
"""Amount of a whole device by resource, for resources that need no other resource."""

NO_TEMPLATE: Final = "no matched GPU shared resource template"


class TypeDemand(ValueObject, gc=False):
    """
    Demand for devices of one type: ``amounts`` of each of ``count`` devices, or of every matching device if ``count`` is 0.

    ``partial``: other pods may use the rest of the device.
    """

    type: str
    amounts: tuple[tuple[str, int], ...]
    count: int
    partial: bool
    hint: DeviceHint = NO_HINT


class DeviceDemand(ValueObject, eq=False):
    """
    All device requests of a pod. Equal demands are one object, so that results are cached by identity.

    ``joint`` has at least two of the requested types, or none.
    ``spec_matters``: the annotations demand something that only a node with a Device object can satisfy.
    """

    types: tuple[TypeDemand, ...]
    joint: tuple[str, ...] = ()
    same_pcie: bool = False
    partition: PartitionSpec | None = None
    names: frozenset[str] = frozenset()  # the requested resources
    spec_matters: bool = False

    def of(self, kind: str) -> TypeDemand:
        """Return the demand for a requested type."""
        return next(each for each in self.types if each.type == kind)


@once_per_request
def device_demand(request: PodRequest) -> DeviceDemand | str | None:
    """Return the device requests of a pod in normal form, the reason why they are invalid, or ``None`` without requests."""
    amounts = {name: amount for name, amount in effective_requests(request).items() if name in TYPE_OF}
    if not amounts:
        return None
    return normal_form(amounts, request.devices)


def normal_form(amounts: ResourceList, spec: DeviceSpec) -> DeviceDemand | str:
    """Return the normal form of these amounts, none of which is 0, or the reason why they are invalid."""
    found = []
    for kind in (GPU, RDMA, FPGA):
        wanted = {name: amount for name, amount in amounts.items() if TYPE_OF[name] == kind}
        if not wanted:
            continue
        if reason := _invalid(wanted):
            return reason
        demand = _gpus(wanted, spec) if kind == GPU else _shares(kind, wanted[_SHAREABLE[kind]], spec.hint(kind))
        if isinstance(demand, str):
            return demand
        found.append(demand)
    # As upstream: types that are not requested, or whose every matching device is requested, are not allocated jointly.
    asked = {each.type for each in found if each.hint.strategy is not AllocateStrategy.APPLY_FOR_ALL}
    joint = tuple(kind for kind in dict.fromkeys(spec.joint) if kind in asked)
    demanding = (
        spec.partition is not None
        or len(joint) > 1
        or any(
            hint.selector is not None
            or hint.function_selector is not None
            or hint.scope is not None
            or hint.exclusive is not DeviceExclusive.NONE
            for hint in (each.hint for each in found)
        )
    )
    together = len(joint) > 1
    return _demand(
        tuple(found),
        joint if together else (),
        spec.same_pcie and together,
        spec.partition,
        frozenset(amounts),
        demanding,
    )


_demand = lru_cache(maxsize=4096)(DeviceDemand)


def _is_unit(amount: int) -> bool:
    return amount <= FULL or amount % FULL == 0


def _by_percent(wanted: ResourceList) -> bool:
    return all(_is_unit(wanted[name]) for name in (CORE, RATIO) if name in wanted)


def _by_share(wanted: ResourceList) -> bool:
    devices = wanted[SHARED]
    parts = [wanted[name] for name in (CORE, RATIO) if name in wanted]
    return all(amount % devices == 0 and amount // devices <= FULL for amount in parts)


def _by_npu_share(wanted: ResourceList) -> bool:
    return wanted[SHARED] == 1 and wanted.get(NPU_DVPP, 0) <= FULL


def _always(_wanted: ResourceList) -> bool:
    return True


_COMBINATIONS: Final[Mapping[frozenset[str], Callable[[ResourceList], bool]]] = {
    **{frozenset({name}): _always for name in (*WHOLE_GPUS, PERCENT_OF_GPU, RDMA_SHARE, FPGA_SHARE)},
    **{
        frozenset(names): _by_percent
        for names in ((MEMORY,), (RATIO,), (CORE, MEMORY), (CORE, RATIO), (NPU_CORE, RATIO))
    },
    **{frozenset((SHARED, *names)): _by_share for names in ((MEMORY,), (RATIO,), (CORE, MEMORY), (CORE, RATIO))},
    **{frozenset((SHARED, NPU_CORE, NPU_CPU, *names)): _by_npu_share for names in ((MEMORY,), (NPU_DVPP, MEMORY))},
}
"""Resources that may be requested together, with the check of their amounts (`ValidDeviceResourceCombinations`)."""


def _invalid(wanted: ResourceList) -> str:
    """Return why the requests for one type are invalid (`ValidateDeviceRequest`), empty if they are valid."""
    for name in (PERCENT_OF_GPU, FPGA_SHARE, RDMA_SHARE):
        if not _is_unit(wanted.get(name, 0)):
            return f"invalid resource unit {name}: {wanted[name]}: a percentage above 100 must be a multiple of 100"
    check = _COMBINATIONS.get(frozenset(wanted))
    listed = " ".join(f"{name}: {wanted[name]}" for name in sorted(wanted))
    if check is None:
        return f"invalid resource device requests: [{listed}]: these resources cannot be combined"
    if not check(wanted):
        rule = "with gpu.shared, at most 100 % of each device, the same on each" if SHARED in wanted else _UNIT_RULE
        return f"invalid resource device requests: [{listed}]: {rule}"
    return ""


_UNIT_RULE: Final = "a percentage above 100 must be a multiple of 100"


def _gpus(wanted: ResourceList, spec: DeviceSpec) -> TypeDemand | str:
    converted = dict(wanted)
    for name in (PERCENT_OF_GPU, *WHOLE_GPUS):
        if (amount := converted.pop(name, 0)) > 0:
            percent = amount if name == PERCENT_OF_GPU else amount * FULL
            converted[CORE] = converted[RATIO] = percent
    ratio = converted.get(RATIO, 0)
    count = converted.pop(SHARED, 0) or (ratio // FULL if ratio > FULL else 1)
    each = {name: -(-amount // count) for name, amount in converted.items()}
    partial = each.get(RATIO, 0) < FULL
    if partial and not each.keys().isdisjoint((NPU_CORE, NPU_CPU, NPU_DVPP)):
        return f"{NO_TEMPLATE}: koord-numa does not support templates of shared NPUs"
    hint = spec.hint(GPU)
    # As for other types: a request for several devices has its number, whatever the strategy.
    if hint.strategy is AllocateStrategy.APPLY_FOR_ALL and count == 1:
        count = 0
    return TypeDemand(GPU, _pairs(each), count, partial, hint)


def _shares(kind: str, amount: int, hint: DeviceHint) -> TypeDemand:
    name = _SHAREABLE[kind]
    if amount > FULL:
        return TypeDemand(kind, ((name, FULL),), amount // FULL, partial=False, hint=hint)
    if hint.strategy is AllocateStrategy.REQUESTS_AS_COUNT:
        each = FULL if hint.exclusive is DeviceExclusive.DEVICE else 1
        return TypeDemand(kind, ((name, each),), amount, partial=each < FULL, hint=hint)
    count = 0 if hint.strategy is AllocateStrategy.APPLY_FOR_ALL else 1
    return TypeDemand(kind, ((name, amount),), count, partial=amount < FULL, hint=hint)


def _pairs(amounts: ResourceList) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(amounts.items()))
