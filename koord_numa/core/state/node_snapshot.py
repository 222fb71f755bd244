"""One node as a decision sees it: the Node, what it offers, who holds what, and whether it is barred. Facts only, no rules."""

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
"""What a node has to give: CPUs that are ours to choose, or a kubelet that chooses, or nothing and why."""


class NodeSnapshot(ValueObject):
    """
    A node in the state of one moment. ``allocatable`` is without the node's own reservation. ``barred`` says why nothing may go
    there although the node itself is fine: locked by a rebind, not trusted. ``pods`` are those counted there; ``nominated`` are those for
    which room is kept there.
    """

    node: Node
    offer: Offer
    ledger: Ledger
    allocatable: ResourceList = value_field(default_factory=dict)
    ports: tuple[HostPort, ...] = ()
    barred: Rejection | None = None
    nominated: tuple[Pod, ...] = ()

    def with_ledger(self, ledger: Ledger) -> "NodeSnapshot":
        """The same node if these pods held what this ledger says."""
        return replace(self, ledger=ledger)

    @property
    def room(self) -> int:
        """Milli-CPU that no pod has asked for yet."""
        return self.allocatable.get(CPU, 0) - self.ledger.amounts.get(CPU, 0)


def inventory_of(node: Node, topology: NodeResourceTopology | None) -> Inventory | Rejection | None:
    """What the objects of a node offer when its CPUs are ours; ``None`` where a kubelet chooses them."""
    # A kubelet's topology that is broken, or that describes no NUMA nodes, is judged as a node without topology, with the reason.
    if (
        topology is not None
        and topology.owner is CpuOwner.KUBELET
        and topology.describes_nodes
        and not topology.problem
    ):
        return None
    return inventory(node, topology)


def allocatable_of(node: Node, offer: Offer | None) -> ResourceList:
    """What a node has for pods, without its own reservation."""
    return offer.allocatable if isinstance(offer, Inventory) else reserve(node.allocatable, node.reservation)


def candidate(node: Node, offer: Offer, ledger: Ledger, ports: tuple[HostPort, ...] = ()) -> NodeSnapshot:
    """A node that nothing bars."""
    return NodeSnapshot(node, offer, ledger, allocatable_of(node, offer), ports)
