"""The snapshot of a node for a decision: the Node, its offer, its holders, and whether it is barred. Facts without rules."""

from koord_numa.core.devices import DeviceOffer
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.constraints import HostPort
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.resources import CPU, ResourceList
from koord_numa.core.state.inventory import Inventory, inventory, reserve
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject, replace, value_field

Offer = Inventory | KubeletView | Rejection
"""The offer of a node: CPUs that the scheduler chooses, CPUs that a kubelet chooses, or a rejection."""


class NodeSnapshot(ValueObject):
    """
    A node at one time.

    ``allocatable`` excludes the node's own reservation. ``barred`` is the reason why nothing may be placed on an
    otherwise valid node: a rebind has locked it, or it is not trusted. ``nominated`` are pods for which room is
    reserved there. ``devices`` are those of the Device object, ``None`` without one.
    """

    node: Node
    offer: Offer
    ledger: Ledger
    allocatable: ResourceList = value_field(default_factory=dict)
    ports: tuple[HostPort, ...] = ()
    barred: Rejection | None = None
    nominated: tuple[Pod, ...] = ()
    devices: DeviceOffer | None = None

    def with_ledger(self, ledger: Ledger) -> "NodeSnapshot":
        """Return the node with another ledger."""
        return replace(self, ledger=ledger)

    @property
    def room(self) -> int:
        """Return the milli-CPU that no pod has requested."""
        return self.allocatable.get(CPU, 0) - self.ledger.amounts.get(CPU, 0)


def inventory_of(node: Node, topology: NodeResourceTopology | None) -> Inventory | Rejection | None:
    """Return the inventory by the objects of a node, ``None`` if a kubelet chooses the CPUs."""
    # An unusable kubelet topology, or one without NUMA nodes, counts as a missing topology, with its reason.
    if (
        topology is not None
        and topology.owner is CpuOwner.KUBELET
        and topology.describes_nodes
        and not topology.problem
    ):
        return None
    return inventory(node, topology)


def allocatable_of(node: Node, offer: Offer | None) -> ResourceList:
    """Return the resources of a node for pods, without its own reservation."""
    return offer.allocatable if isinstance(offer, Inventory) else reserve(node.allocatable, node.reservation)


def candidate(node: Node, offer: Offer, ledger: Ledger, ports: tuple[HostPort, ...] = ()) -> NodeSnapshot:
    """Return the snapshot of a node that is not barred."""
    return NodeSnapshot(node, offer, ledger, allocatable_of(node, offer), ports)
