"""What a node gives to a pod: CPUs that the scheduler chooses, or a kubelet's admission as far as it can be foreseen."""

from koord_numa.core.allocate import allocate_demand
from koord_numa.core.inventory import Inventory
from koord_numa.core.kubelet.admission import would_admit
from koord_numa.core.kubelet.unsupported_policies import refuse_promises
from koord_numa.core.kubelet.worst_case_alignment import refuse_unsure
from koord_numa.core.ledger import Ledger
from koord_numa.core.node_snapshot import NodeSnapshot
from koord_numa.core.scheduling.request import SchedulingRequest
from koord_numa.core.verdicts import Alignment, Placement, Rejection


def place(ask: SchedulingRequest, seen: NodeSnapshot) -> Placement | Rejection:
    """What the pod would get on this node now, or which rule of its CPUs and NUMA nodes forbids it."""
    offer = seen.offer
    if isinstance(offer, Rejection):
        return offer
    if isinstance(offer, Inventory):
        return _chosen(ask, offer, seen.ledger)
    if refusal := refuse_promises(ask.request, offer.state.node.config):
        return refusal
    admission = would_admit(ask.request, offer)
    if isinstance(admission, Rejection):
        return admission
    if admission.mask is None:
        alignment = Alignment.NOT_ATTEMPTED
    else:
        alignment = Alignment.ALIGNED if admission.mask.bit_count() == 1 else Alignment.UNALIGNED
    return Placement(
        node=seen.node.name, numa=admission.numa, mask=admission.mask, alignment=alignment, note=admission.note
    )


def _chosen(ask: SchedulingRequest, offer: Inventory, ledger: Ledger) -> Placement | Rejection:
    """The scheduler's choice, unless a strict kubelet beside the agent might align the pod elsewhere or not at all."""
    if isinstance(ask.demand, Rejection):
        return ask.demand
    granted = allocate_demand(ask.demand, offer, ledger)
    if offer.aligner is None or isinstance(granted, Rejection):
        return granted
    return refuse_unsure(ask.request, offer.aligner, ledger) or granted
