"""What a node gives to a pod: CPUs that the scheduler chooses, or a kubelet's admission as far as it can be foreseen."""

from typing import Final

from koord_numa.core.allocate import allocate_demand
from koord_numa.core.allocation.device_hints import DeviceHints
from koord_numa.core.kubelet.admission import would_admit
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.exploration import refuse_exploration
from koord_numa.core.kubelet.inference.worst_case_alignment import NOT_SURELY_ALIGNED, refuse_unsure
from koord_numa.core.kubelet.unsupported_policies import refuse_promises
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Alignment, Exclusivity, Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    NO_NUMA_POLICY,
    NOT_EXCLUSIVE,
    NUMA_PREFERRED,
    KubeletPolicy,
    KubeQos,
)
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.resources import ResourceList, total
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.core.value_objects import replace

_NOT_BY_KUBELETS: Final = "its kubelet chooses the CPUs: no exclusive policy is honoured"


def place(ask: SchedulingRequest, seen: NodeSnapshot, devices: DeviceHints | None = None) -> Placement | Rejection:
    """
    What the pod would get on this node now, or which rule of its CPUs and NUMA nodes forbids it.

    ``devices`` of its claims are placed on the same NUMA nodes where the scheduler chooses these; a kubelet does not ask for them.
    """
    offer = seen.offer
    if isinstance(offer, Rejection):
        return offer
    if isinstance(offer, Inventory):
        return _chosen(ask, offer, seen.ledger, devices)
    # Promises before admission: what no kubelet keeps is refused without a replay.
    if refusal := refuse_promises(aligned_by_kubelet(ask, offer.state.node.config), offer.state.node.config):
        return refusal
    admission = would_admit(ask.request, offer)
    if isinstance(admission, Rejection):
        return admission
    if refusal := refuse_exploration(ask.request, offer, admission, ask.kubelet_options):
        return refusal
    if admission.mask is None:
        alignment = Alignment.NOT_ATTEMPTED
    else:
        alignment = Alignment.ALIGNED if admission.mask.bit_count() == 1 else Alignment.UNALIGNED
    # An exclusive policy that a kubelet does not know is reported as broken and not as honoured.
    ignored = ask.request.bind.exclusive is not NOT_EXCLUSIVE or ask.request.numa.exclusive is NUMA_PREFERRED
    return Placement(
        node=seen.node.name,
        numa=admission.numa if _is_certain(admission.numa, ask.amounts) else (),
        mask=admission.mask,
        alignment=alignment,
        exclusivity=Exclusivity.BROKEN if ignored else Exclusivity.HONOURED,
        note="; ".join(filter(None, (admission.note, _NOT_BY_KUBELETS if ignored else ""))),
        explores=admission.explores,
    )


def _is_certain(numa: tuple[tuple[int, ResourceList], ...], requested: ResourceList) -> bool:
    """Amounts that add up to more than was requested name places where the kubelet *may* take them from: no result to write."""
    held = numa[0][1] if len(numa) == 1 else total(amounts for _, amounts in numa)
    return not [name for name, amount in held.items() if amount > requested.get(name, 0)]


def aligned_by_kubelet(ask: SchedulingRequest, config: KubeletConfig) -> PodRequest:
    """
    The pod as the kubelet's NUMA policy concerns it: not at all where the kubelet has none and the pod has claims.

    Such a pod's CPUs can be claimed too, and its policy is then met by the devices of its claims (``claim_devices``).
    """
    request = ask.request
    if ask.claims is None or config.topology_policy not in (None, KubeletPolicy.NONE):
        return request
    return replace(request, numa=replace(request.numa, policy=NO_NUMA_POLICY))


def _may_be_aligned(request: PodRequest) -> bool:
    """Might a kubelet of unknown settings tie the pod to NUMA nodes? CPUs and memory of Guaranteed pods, devices of any."""
    parts = [part for _, part in pod_demand(request).containers]
    return kube_qos(request) is KubeQos.GUARANTEED or any(part.devices for part in parts)


def _chosen(
    ask: SchedulingRequest, offer: Inventory, ledger: Ledger, devices: DeviceHints | None
) -> Placement | Rejection:
    """The scheduler's choice, unless a strict kubelet beside the agent might align the pod elsewhere or not at all."""
    if isinstance(ask.demand, Rejection):
        return ask.demand
    if offer.kubelet_unknown and _may_be_aligned(ask.request):
        return Rejection(Reason.BAD_TOPOLOGY, NOT_SURELY_ALIGNED, offer.problem, resolvable=False)
    demand = ask.demand
    if ask.claims is not None and not offer.zones and not offer.problem:
        demand = replace(demand, numa=NO_NUMA_POLICY)  # as before such a kubelet: claims may tell what no topology does
    granted = allocate_demand(demand, offer, ledger, devices)
    # Only after a placement was found: the worst case is the costlier question.
    if offer.aligner is None or isinstance(granted, Rejection):
        return granted
    return refuse_unsure(ask.request, offer.aligner, ledger) or granted
