"""A policy of the pod that keeps it waiting: what it could relax to fit as large as it is."""

from collections.abc import Iterator

from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaExclusive, NumaPolicy
from koord_numa.core.value_objects import replace
from koord_numa.view.advice.probe import Probe, Remedy, where


def relaxed_policies(probe: Probe) -> Iterator[Remedy]:
    """The least relaxation of each policy alone after which the pod fits."""
    for way in (_numa_policies, _bind_policies, _exclusivity):
        for text, request in way(probe.pod.request):
            placement = probe.fits_on_one(request)
            if placement is not None:
                yield Remedy("policy", placement.node, f"{text} it fits on {where(placement)}")
                break


def _numa_policies(request: PodRequest) -> Iterator[tuple[str, PodRequest]]:
    order = [NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED, NumaPolicy.BEST_EFFORT, NumaPolicy.NONE]
    asked = request.numa.policy
    if asked is NumaPolicy.NONE:
        return
    for policy in order[order.index(asked) + 1 :]:
        spec = replace(request.numa, policy=policy)
        wording = (
            f"with numaTopologyPolicy {policy}" if policy is not NumaPolicy.NONE else "without a numaTopologyPolicy"
        )
        yield (
            f"{wording} instead of {asked}" if policy is not NumaPolicy.NONE else f"{wording} ({asked} now)",
            replace(request, numa=spec),
        )


def _bind_policies(request: PodRequest) -> Iterator[tuple[str, PodRequest]]:
    required = request.bind.required
    if required in (CpuBindPolicy.NONE, CpuBindPolicy.DEFAULT):
        return
    bind = replace(request.bind, required=CpuBindPolicy.NONE, preferred=required)
    yield f"with {required} preferred instead of required", replace(request, bind=bind)


def _exclusivity(request: PodRequest) -> Iterator[tuple[str, PodRequest]]:
    if request.bind.exclusive is not CpuExclusivePolicy.NONE:
        bind = replace(request.bind, exclusive=CpuExclusivePolicy.NONE)
        yield f"without preferredCPUExclusivePolicy {request.bind.exclusive}", replace(request, bind=bind)
    if request.numa.policy is not NumaPolicy.NONE and request.numa.exclusive is not NumaExclusive.PREFERRED:
        spec = replace(request.numa, exclusive=NumaExclusive.PREFERRED)
        yield "with singleNUMANodeExclusive Preferred", replace(request, numa=spec)
