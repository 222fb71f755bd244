"""
The state of a node for a decision: resources and settings with scheduler-owned CPUs, and the snapshot with its holders.

Held resources are in the ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.devices import DeviceOffer
from koord_numa.core.kubelet import Aligner, KubeletView, aligner
from koord_numa.core.objects.constraints import HostPort
from koord_numa.core.objects.node import Node, NodeReservation, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import CpuOwner, NodeBindPolicy, NumaAllocateStrategy, NumaPolicy
from koord_numa.core.pod_resources import amplify_all
from koord_numa.core.resources import CPU, MILLI, ResourceList, is_batch, subtract_to_zero
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject, replace, value_field

FULL_PCPUS_ONLY: Final = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA: Final = "distribute-cpus-across-numa"
STATIC: Final = "static"

PerNuma = tuple[int, ...]
"""One number per NUMA node of the inventory, in the order of ``numa_ids``."""


class NodeTraits(ValueObject, eq=False):
    """
    The inputs of allocation rules from a node, except amounts. Nodes with equal machine and configuration share an object.

    Its fields are those of ``Inventory``. ``ratio`` is the ratio of CPUs, and ``has_zones`` whether NUMA nodes publish
    amounts.
    """

    machine: CpuTopology | None
    policy: NumaPolicy
    bind: NodeBindPolicy
    strategy: NumaAllocateStrategy | None
    ratio: float
    has_zones: bool
    spans_evenly: bool
    static_kubelet: bool
    kubelet_whole_cores: bool
    never_aligned: bool
    cpus_by_claim: bool
    isolated: CpuSet
    problem: str
    gap: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """
    A node as input of an allocation. ``zones`` are the offers of NUMA nodes by id: amplified, without reserved CPUs.

    ``machine`` is ``None`` if CPU ids are unknown. ``problem`` is the reason, if known. ``gap`` is the missing part of
    a readable topology. ``policy`` and ``bind`` combine the node's labels and its kubelet's settings. ``strategy`` is
    from the label. ``spans_evenly``: the kubelet distributes CPUs over NUMA nodes if one is not enough, and no label
    overrides it. ``ratios`` are the effective amplification ratios for NUMA nodes, ``node_ratios`` those of the Node
    object. ``kept_from_pools`` are CPUs outside the shared pools that no pod in the ledger holds. ``kubelet_pods`` are
    pods (by UID) with CPUs chosen by the kubelet: they are already subtracted from ``zones``. ``kubelet_whole_cores``:
    a static kubelet with full-pcpus-only rejects split cores, whatever the label. ``kubelet_unknown``: a kubelet with
    unreadable settings chooses CPUs. ``never_aligned``: the label is ``None``. ``cpus_by_claim``: a driver allocates
    the CPUs, only to pods with claims. ``isolated`` are CPUs of the kernel's isolcpus. ``aligner`` models the node's
    kubelet if it might nevertheless reject pods for their NUMA nodes.
    """

    node: str
    machine: CpuTopology | None = None
    zones: tuple[tuple[int, ResourceList], ...] = ()
    reserved: CpuSet = EMPTY
    allocatable: ResourceList = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)
    node_ratios: Mapping[str, float] = field(default_factory=dict)
    policy: NumaPolicy = NumaPolicy.NONE
    bind: NodeBindPolicy = NodeBindPolicy.NONE
    strategy: NumaAllocateStrategy | None = None
    spans_evenly: bool = False
    static_kubelet: bool = False
    kubelet_whole_cores: bool = False
    kubelet_unknown: bool = False
    never_aligned: bool = False
    cpus_by_claim: bool = False
    isolated: CpuSet = EMPTY
    kept_from_pools: CpuSet = EMPTY
    kubelet_pods: frozenset[str] = frozenset()
    aligner: Aligner | None = None
    problem: str = ""
    gap: str = ""
    numa_ids: tuple[int, ...] = field(
        init=False, repr=False, compare=False
    )  # NUMA nodes that publish amounts, ascending
    totals: Mapping[str, PerNuma] = field(
        init=False, repr=False, compare=False
    )  # ``zones`` by resource, sorted by name
    cpus: CpuSet = field(init=False, repr=False, compare=False)  # all CPUs that pods may get
    traits: NodeTraits = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = sorted({name for _, offer in self.zones for name in offer})
        totals = {name: tuple(offer.get(name, 0) for _, offer in self.zones) for name in names}
        object.__setattr__(self, "numa_ids", tuple(numa for numa, _ in self.zones))
        object.__setattr__(self, "totals", totals)
        object.__setattr__(self, "cpus", self.machine.all - self.reserved if self.machine else EMPTY)
        object.__setattr__(self, "traits", _traits_of(self))


def _traits_of(node: Inventory) -> NodeTraits:
    return _shared_traits(
        node.machine,
        node.policy,
        node.bind,
        node.strategy,
        # A ratio below one would reduce the weight of CPUs. The annotation only amplifies.
        max(1, node.ratios.get(CPU, 1)),
        bool(node.zones),
        node.spans_evenly,
        node.static_kubelet,
        node.kubelet_whole_cores,
        node.never_aligned,
        node.cpus_by_claim,
        node.isolated,
        node.problem,
        node.gap,
    )


# Nodes have few different models. An evicted entry is created again, at the cost of evaluating the rules once per
# request class.
_shared_traits: Final = lru_cache(maxsize=1024)(NodeTraits)


def inventory(node: Node, topology: NodeResourceTopology | None) -> Inventory | Rejection:
    """
    Return the inventory of a node with scheduler-owned CPUs, or a rejection if the node takes no pods.

    Without a readable topology the node still takes pods that need none. Raises ``ValueError`` for a kubelet-owned
    topology: the kubelet model handles it.
    """
    # Unreadable labels may forbid the pod: nothing is placed there.
    if node.problem:
        return Rejection(
            Reason.BAD_NODE, "node(s) had malformed labels or annotations", detail=node.problem, resolvable=False
        )
    # Before the topology, since the amounts of the Node object are always known.
    allocatable = reserve(node.allocatable, node.reservation)
    if topology is None or topology.problem or not topology.describes_nodes:
        return Inventory(
            node=node.name,
            allocatable=allocatable,
            # Without a topology there are no zones, so ratios only affect the node's own amounts.
            ratios=node.amplification,
            node_ratios=node.amplification,
            policy=node.numa_policy or NumaPolicy.NONE,
            never_aligned=node.numa_policy is NumaPolicy.NONE,
            bind=node.bind_policy or NodeBindPolicy.NONE,
            kubelet_unknown=topology is not None and bool(topology.problem) and topology.owner is CpuOwner.KUBELET,
            strategy=node.strategy,
            problem=topology.problem if topology else "",
            gap=topology.gap if topology else "",
        )
    if topology.owner is not CpuOwner.SCHEDULER:
        raise ValueError(f"the CPUs of node {node.name} are not the scheduler's to give")
    static = topology.kubelet.cpu_policy == STATIC
    reserved = topology.reserved | node.reservation.cpus
    # Ratios of an NRT replace the node's: its amounts were amplified by them.
    ratios = node.amplification if topology.amplification is None else topology.amplification
    return Inventory(
        node=node.name,
        machine=topology.machine,
        zones=tuple((zone.numa, _offer(zone, reserved, node, topology)) for zone in topology.zones),
        reserved=reserved,
        allocatable=allocatable,
        ratios=ratios,
        node_ratios=node.amplification,
        # A label ``None`` is a policy of its own and overrides the kubelet's setting.
        policy=topology.numa_policy if node.numa_policy is None else node.numa_policy,
        never_aligned=node.numa_policy is NumaPolicy.NONE,
        bind=_bind_policy(node, topology),
        kubelet_whole_cores=_kubelet_whole_cores(topology),
        strategy=node.strategy,
        spans_evenly=node.strategy is None and bool(topology.kubelet.cpu_options.get(DISTRIBUTE_ACROSS_NUMA)),
        static_kubelet=static,
        isolated=topology.isolated,
        kept_from_pools=_kept_from_pools(node, topology),
        kubelet_pods=frozenset(pod.uid for pod in topology.kubelet_pods if pod.managed_by_kubelet),
        aligner=aligner(node, topology, ratios),
        gap=topology.gap,
    )


def with_kubelet_reserved_cpus(topology: NodeResourceTopology) -> NodeResourceTopology:
    """
    Return the topology with the kubelet's reserved CPUs available to pods, also in the amounts of their NUMA nodes.

    Fine-grained CPU orchestration, "Take over kubelet CPU management policies". The node's allocatable is unchanged and
    bounds all pods together.
    """
    return replace(topology, reserved=topology.reserved - topology.kubelet_reserved)


def reserve(allocatable: ResourceList, reservation: NodeReservation) -> ResourceList:
    """
    Return allocatable minus the node's own reservation: the count of reserved CPUs if ids are given, else the amounts.

    Batch amounts are computed from unused resources and are unchanged (Koordinator's node transformer).
    """
    if reservation.reserved_cpus_only:
        return allocatable
    kept = dict(reservation.amounts)
    # CPU ids replace the amount: both together would reserve twice.
    if reservation.cpus:
        kept[CPU] = MILLI * len(reservation.cpus)
    if not any(kept.values()):
        return allocatable
    rest = subtract_to_zero(allocatable, kept)
    return {name: allocatable[name] if is_batch(name) else rest[name] for name in allocatable}


def _offer(zone: Zone, reserved: CpuSet, node: Node, topology: NodeResourceTopology) -> ResourceList:
    """
    Return the offer of a zone, as Koordinator's topology options: ``cpu`` without reserved CPUs, then amplified.

    Amounts of an NRT with ratios are amplified already.
    """
    offer = dict(zone.allocatable)
    if topology.machine:
        here = topology.machine.numa_bits.get(zone.numa, 0)
        if not any(CPU in other.allocatable for other in topology.zones):
            # CPUs are known by id, but not as an amount: a zone offers its CPUs.
            offer[CPU] = MILLI * here.bit_count()
        if offer.get(CPU):
            # Subtracted before amplification: a reserved CPU reduces the amplified amount by ``ratio`` CPUs.
            offer[CPU] = max(0, offer[CPU] - MILLI * (here & reserved.bits).bit_count())
    return offer if topology.amplification is not None else amplify_all(offer, node.amplification)


def _bind_policy(node: Node, topology: NodeResourceTopology) -> NodeBindPolicy:
    """Return the label's policy, including ``None``, by default the kubelet's option (CPU orchestration, "Compatible")."""
    if node.bind_policy is not None:
        return node.bind_policy
    return NodeBindPolicy.FULL_PCPUS_ONLY if _kubelet_whole_cores(topology) else NodeBindPolicy.NONE


def _kubelet_whole_cores(topology: NodeResourceTopology) -> bool:
    kubelet = topology.kubelet
    return kubelet.cpu_policy == STATIC and bool(kubelet.cpu_options.get(FULL_PCPUS_ONLY))


def _kept_from_pools(node: Node, topology: NodeResourceTopology) -> CpuSet:
    """Return the reserved CPUs outside the shared pool: all except those of the kubelet (fine-grained CPU orchestration)."""
    by_kubelet = CpuSet(0)
    for pod in topology.kubelet_pods:
        if pod.managed_by_kubelet:
            by_kubelet |= pod.cpus
    return (topology.reserved - (topology.kubelet.reserved_cpus or EMPTY)) | node.reservation.cpus | by_kubelet


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
