"""
State of one node name: its Node, its NodeResourceTopology, the pods counted there, and the reasons why it is barred.

A record exists as soon as any object refers to the name, because events arrive in any order. It makes no decisions.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import Final

from koord_numa.core.cpus.kubelet_options import StatedOptions, with_stated_options
from koord_numa.core.devices import TYPE_OF, DeviceOffer, device_offer
from koord_numa.core.kubelet import KubeletHistory, KubeletView, NodePods, PodDemand, pod_demand
from koord_numa.core.objects.constraints import HostPort
from koord_numa.core.objects.devices import DeviceInventory
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.preempt.dry_run import Nominee, PreemptionNode, Unit
from koord_numa.core.resources import PODS, ResourceList
from koord_numa.core.state.inventory import Inventory, NodeSnapshot, Offer, allocatable_of, inventory_of
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.topology_lag import UnreportedPods
from koord_numa.wire.names import DEDICATED, GPU_MODEL, GPU_PARTITION_POLICY, HONOR


def clash(topology: NodeResourceTopology | None, ledger: Ledger) -> str:
    """
    Return which pods hold the same CPUs from the scheduler and from the kubelet (``node.koordinator.sh/pod-cpu-allocs``), as a sentence.

    Empty without a conflict. The conflict ends when one of the pods is gone.
    """
    # Inexpensive checks first: nearly all nodes have a single source of CPU assignments.
    if topology is None or not topology.kubelet_pods or not ledger.bits:
        return ""
    for given in topology.kubelet_pods:
        if not given.managed_by_kubelet or not given.cpus.bits & ledger.bits:
            continue
        for held in ledger:
            both = held.cpus & given.cpus
            # The same pod in both lists: the agent reports the scheduler's own assignment.
            if both and held.pod.uid != given.uid:
                return (
                    f"CPUs {both} belong to {held.pod} by its resource-status and to "
                    f"{given.namespace}/{given.name} by the kubelet's static policy"
                )
    return ""


UNLIMITED: Final = 1 << 40
"""Pod limit of a node that publishes none, and amount of a resource that the Node does not limit."""


@dataclass(slots=True, eq=False)
class NodeInfo:
    """
    State of one node name.

    ``unreported`` tracks which counted pods the node's topology does not show yet. ``nominees`` are the nominated pods by UID; decisions
    count them, ``ledger`` and ``pods`` do not. ``revision`` is incremented with every change that affects decisions.

    Derived from the objects: ``current`` is the published topology unless it belongs to a former node of this name (another UID).
    ``topology`` is the same unless it describes no NUMA nodes. ``inventory`` is what the scheduler can allocate, or the rejection (``None``
    where a kubelet allocates CPUs, or without a Node). ``allocatable`` is the amount available for pods.
    """

    name: str
    node: Node | None = None
    published: NodeResourceTopology | None = None
    current: NodeResourceTopology | None = None
    topology: NodeResourceTopology | None = None
    inventory: Inventory | Rejection | None = None
    device_inventory: DeviceInventory | None = None  # the Device object
    allocatable: ResourceList = field(default_factory=dict)
    headroom: ResourceList = field(default_factory=dict)  # kept free, unless the node is dedicated
    stated: tuple[StatedOptions, ...] = ()  # configured options of kubelets that publish none
    ledger: Ledger = field(default_factory=Ledger)
    pods: dict[str, Pod] = field(default_factory=dict)
    unreported: UnreportedPods = field(init=False)
    topology_seen: float = 0.0  # monotonic seconds at which this resourceVersion was first observed
    nominees: dict[str, Nominee] = field(default_factory=dict)
    history: KubeletHistory = field(default_factory=KubeletHistory)  # where a kubelet allocates CPUs
    locked: str = ""
    long_bind_line: bool = False
    cpus_by_claim: bool = False  # whether a driver publishes the node's CPUs
    broken: dict[str, str] = field(default_factory=dict)  # by UID, why an object about the node cannot be processed
    revision: int = 0
    explore_later: Callable[[str], None] | None = None  # called with the name if a decision needs further slices
    _ports: dict[str, tuple[HostPort, ...]] = field(default_factory=dict)  # of pods with host ports
    _unknown_cpus: dict[str, str] = field(default_factory=dict)  # by UID, for pods with an unreadable resource-status
    _unknown_devices: dict[str, str] = field(
        default_factory=dict
    )  # by UID, for pods with an unreadable device-allocated
    _holds_devices: set[str] = field(default_factory=set)  # UIDs of the pods that hold devices by id
    _candidate: NodeSnapshot | None = None
    _booked: Ledger | None = None  # the ledger including the nominees
    _admitted_counts: frozenset[int] | None = None
    _offer: tuple[tuple[object, ...], DeviceOffer | None] | None = None  # the devices, with what they were derived from

    def __post_init__(self) -> None:
        self.unreported = UnreportedPods(self.pods)

    @property
    def unpublished(self) -> set[str]:
        """UIDs of counted pods that the node's topology does not show yet."""
        return self.unreported.hidden

    @property
    def empty(self) -> bool:
        """True if the record holds no data and can be removed."""
        return not (
            self.node
            or self.published
            or self.device_inventory
            or self.pods
            or self.locked
            or self.nominees
            or self.long_bind_line
            or self.cpus_by_claim
            or self.broken
            or self.history.evidence
        )

    @property
    def version(self) -> str | None:
        """Resource version of the published topology, ``None`` without a topology."""
        return None if self.published is None else self.published.resource_version

    @property
    def unknown_cpus(self) -> str:
        """Reason why the free CPUs of a scheduler-owned node are not known; empty if they are known."""
        if not self._unknown_cpus or not isinstance(self.inventory, Inventory) or self.inventory.machine is None:
            return ""
        uid = next(iter(self._unknown_cpus))
        return f"the CPUs of {self.pods[uid].key} are not known: {self._unknown_cpus[uid]}"

    @property
    def devices(self) -> DeviceOffer | None:
        """The devices of the Device object, ``None`` without one."""
        if self.device_inventory is None and not self._holds_devices and not self._unknown_devices:
            return None  # most nodes
        why = next(iter(self._unknown_devices.values()), "")
        key = self.device_inventory, self.node, self.topology, why, bool(self._holds_devices)
        # By identity: pods change more often than the objects.
        if self._offer is None or not all(map(is_, self._offer[0], key)):
            self._offer = key, self._device_offer()
        return self._offer[1]

    def _device_offer(self) -> DeviceOffer | None:
        inventory, node = self.device_inventory, self.node
        # The object of a former node of this name must not describe the new node.
        if inventory is not None and node is not None and node.uid not in ("", inventory.node_uid or node.uid):
            inventory = None
        lost = (
            f"the devices of {self.pods[uid].key} are not known: {why}" for uid, why in self._unknown_devices.items()
        )
        labels = {} if node is None else node.labels
        offer = device_offer(
            inventory,
            next(lost, ""),
            held=bool(self._holds_devices),
            model=labels.get(GPU_MODEL, ""),
            honors_partitions=labels.get(GPU_PARTITION_POLICY) == HONOR,
        )
        # Where koordlet runs, it publishes the CPUs too.
        has_koordlet = self.topology is None or self.topology.owner is CpuOwner.SCHEDULER
        return offer if offer is None or has_koordlet else replace(offer, injected=False)

    @property
    def distrust(self) -> str:
        """Reason why the node's CPUs cannot be allocated safely; empty if they can."""
        return clash(self.topology, self.ledger) or self.unknown_cpus

    @property
    def counted(self) -> Ledger:
        """The ledger. Where a kubelet allocates CPUs, without pods that it certainly does not count although no event has shown that."""
        return self.history.absent.left_out(self.ledger) if self.inventory is None else self.ledger

    @property
    def booked(self) -> Ledger:
        """``counted`` and the amounts reserved for nominees."""
        if self._booked is None:  # ``counted`` itself if equal: a copy would be most of a decision's cost
            self._booked = self._ledger_with(self.nominees) if self.nominees else self.counted
        return self._booked

    @property
    def free(self) -> dict[str, int]:
        """
        Amounts that pods have not requested, by resource, and the number of additional pods. Amounts for nominees count as free.

        Devices by id are unlimited if the Node does not list them: the Device object counts them.
        """
        held, pods = self.counted.amounts, len(self.counted)
        left = {name: amount - held.get(name, 0) for name, amount in self.allocatable.items()}
        if self.devices is not None:
            left = {**dict.fromkeys(TYPE_OF, UNLIMITED), **left}
        return {**left, PODS: self.allocatable.get(PODS, UNLIMITED) - pods}

    def set_objects(self, node: Node | None, published: NodeResourceTopology | None) -> None:
        """Update the Node and its topology, and everything derived from them."""
        self.node, self.published, former = node, published, self.inventory
        self.current, self.topology, self.inventory, self.allocatable = None, None, None, {}
        if node is not None:
            # The topology of a former node of this name must not describe the new node. An empty UID on either side
            # proves nothing.
            if published is not None and not (published.node_uid and node.uid and published.node_uid != node.uid):
                self.current = with_stated_options(published, node.labels, self.stated)
                self.topology = self.current if self.current.describes_nodes else None
            found = inventory_of(node, self.current)
            # A driver that allocates CPUs competes with the scheduler only where the scheduler allocates CPUs.
            by_claim = self.cpus_by_claim and isinstance(found, Inventory)
            self.inventory = replace(found, cpus_by_claim=True) if by_claim and isinstance(found, Inventory) else found
            if self.inventory is None and self.topology is not None and not self.topology.problem:
                self.history.observe_topology(node, self.topology)
                if former is not None:
                    self.history.sync(self.pods.values())
            else:
                self.history.reset()
            self.allocatable = self._without_headroom(node, allocatable_of(node, self.inventory))
        self._admitted_counts = None
        self.touch()

    def _without_headroom(self, node: Node, allocatable: ResourceList) -> ResourceList:
        """Subtract the amount that other schedulers may take at any time; a dedicated node has no headroom."""
        if not self.headroom or node.labels.get(DEDICATED) == "true":
            return allocatable
        return {name: max(0, amount - self.headroom.get(name, 0)) for name, amount in allocatable.items()}

    def judge_again(self, now: float) -> bool:
        """Judge the last topology of a kubelet with the pods known now. Return whether the known state changed."""
        if self.inventory is not None or self.topology is None:
            return False
        belief, shown, absent = self.history.belief, self.history.shown, self.history.absent.unlisted
        reading = self.history.judge_again()
        if reading is None:
            return False
        hidden = self.unreported.judge_again(reading, now)
        return (
            hidden
            or self.history.belief is not belief
            or (shown, absent) != (self.history.shown, self.history.absent.unlisted)
        )

    def observe(self, pod: Pod, now: float, *, listed: bool = False) -> bool:
        """
        Track a pod on a kubelet-owned node before it is counted. Return whether it reveals options of the kubelet.

        ``listed``: no event has shown the change of the pod, so its bind may have been long before.
        """
        if self.inventory is not None:
            return False
        evidence = self.history.evidence
        explored, known = bool(evidence.exploring), self.admitted_counts()
        self.history.observe(pod, now, listed=listed)
        if pod.started and evidence.is_of_this_life(pod):
            self._admitted_counts = known.union(pod_demand(pod.request).counts)
        return explored != bool(evidence.exploring) or self._admitted_counts != known

    def admitted_counts(self) -> frozenset[int]:
        """Return ``KubeletEvidence.admitted_counts``, cached until pods change."""
        if self._admitted_counts is None:
            self._admitted_counts = self.history.evidence.admitted_counts(self.pods.values())
        return self._admitted_counts

    def count(self, pod: Pod, holding: Holding) -> None:
        """Count a pod, replacing its former state."""
        if (uid := pod.key.uid) in self.pods:
            self._admitted_counts = None
            # The same pod may be counted again without host ports.
            self._ports.pop(uid, None)
        self.pods[uid] = pod
        if pod.unknown_cpus:
            self._unknown_cpus[uid] = pod.unknown_cpus
        else:
            self._unknown_cpus.pop(uid, None)
        if pod.unknown_devices:
            self._unknown_devices[uid] = pod.unknown_devices
        else:
            self._unknown_devices.pop(uid, None)
        if holding.devices:
            self._holds_devices.add(uid)
        else:
            self._holds_devices.discard(uid)
        if ports := pod.request.constraints.host_ports:
            self._ports[uid] = ports
        self.ledger.hold(holding)
        self.touch()

    def discount(self, uid: str) -> None:
        """Stop counting the pod."""
        pod = self.pods.pop(uid, None)
        if pod is not None and pod.started:
            self._admitted_counts = None
        self._ports.pop(uid, None)
        self._unknown_cpus.pop(uid, None)
        self._unknown_devices.pop(uid, None)
        self._holds_devices.discard(uid)
        self.unreported.discard(uid)
        self.ledger.release(uid)
        self.touch()

    def touch(self) -> None:
        """Invalidate derived data after a change."""
        self.revision += 1
        self._candidate = self._booked = None

    def expect(self, nominee: Nominee) -> None:
        """Reserve amounts for another pod. The cached ledger is extended instead of rebuilt, which speeds up gangs."""
        uid, booked = nominee.pod.key.uid, self._booked
        if uid in self.nominees or uid in self.counted or booked is None:
            booked = None
        elif not self.nominees:
            booked = Ledger.of(booked)
        self.nominees[uid] = nominee
        self.touch()
        if booked is not None:
            booked.hold(nominee.holding)
            self._booked = booked

    def expect_no_more(self, *uids: str) -> None:
        """Release the amounts reserved by ``expect`` for these pods."""
        counted = self.counted
        booked = self._booked if len(self.nominees) > len(uids) and not any(uid in counted for uid in uids) else None
        for uid in uids:
            del self.nominees[uid]
        self.touch()
        if booked is not None:
            for uid in uids:
                booked.release(uid)
            self._booked = booked

    def candidate(self) -> NodeSnapshot | None:
        """Return the snapshot for a decision; ``None`` without a Node object."""
        if self.node is None:
            return None
        if self._candidate is None:
            self._candidate = self._derive(self.node, self.booked, self.nominees)
        return self._candidate

    def explore(self) -> bool:
        """
        Run a slice of the replays and evaluations of the kubelet's states.

        Return whether they are finished or the node has changed.
        """
        if self.history.busy:
            if not self.history.advance():
                return False
            self.touch()
            return True
        offer = self._candidate.offer if self._candidate is not None else None
        explorations = offer.explorations if isinstance(offer, KubeletView) else None
        if explorations is not None and not explorations.advance():
            return False
        self.revision += 1  # the snapshot stays: it has the answers
        return True

    def candidate_for(self, pod: Pod) -> NodeSnapshot | None:
        """
        Return the snapshot for a pod that may take the amounts reserved for itself and for nominees after it.

        Nominees after it have a lower priority, or an equal priority and a later nomination. Their preemptions did not use the amounts of
        this pod. Until their victims are gone, both the victims and the nominees would be counted.
        """
        return self._seen_with(self._before(pod))

    def nominees_after(self, pod: Pod) -> list[str]:
        """Return the UIDs of nominees whose amounts the pod may take: its own, and those that ``candidate_for`` omits."""
        before = self._before(pod)
        return [uid for uid in self.nominees if uid not in before]

    def _before(self, pod: Pod) -> dict[str, Nominee]:
        priority, order = pod.request.priority, list(self.nominees)
        # Nominees are in the order of their nominations, which the dict preserves.
        earlier = set(order[: order.index(pod.key.uid)]) if pod.key.uid in self.nominees else set(order)
        return {
            uid: it
            for uid, it in self._others(pod).items()
            if it.pod.request.priority > priority or (it.pod.request.priority == priority and uid in earlier)
        }

    def site_for(
        self, pod: Pod, assumed: frozenset[str], group: Collection[str] = (), units: Mapping[str, Unit] | None = None
    ) -> PreemptionNode | None:
        """
        Return the node with all its pods for preemption by this pod; ``None`` without a Node object.

        Amounts reserved for the pods ``group`` (UIDs) are free as well. ``units`` are as in ``PreemptionNode``.
        """
        others = {uid: it for uid, it in self._others(pod).items() if uid not in group}
        seen = self._seen_with(others)
        if seen is None:
            return None
        there = self.pods if self.counted is self.ledger else {uid: self.pods[uid] for uid in self.counted.holdings}
        return PreemptionNode(
            seen, there, self.topology, others, frozenset(self.unpublished).union(others), assumed, units or {}
        )

    def barred(self) -> Rejection | None:
        """Return why nothing may be placed here although the node itself is suitable."""
        # The most specific reason first; each reason is sufficient.
        if self.locked:
            return Rejection(Reason.LOCKED, "node(s) were locked by a rebind", self.locked, resolvable=False)
        if self.long_bind_line:
            return Rejection(Reason.BIND_QUEUE, "node(s) had many binds under way", resolvable=False)
        if self.broken:
            why = next(iter(self.broken.values()))
            return Rejection(Reason.UNTRUSTED, "node(s) had objects that cannot be processed", why, resolvable=False)
        if self.topology is not None and self.topology.kubelet_pods and (why := clash(self.topology, self.ledger)):
            return Rejection(Reason.UNTRUSTED, "node(s) had CPUs with two owners", why, resolvable=False)
        if why := self.unknown_cpus:
            return Rejection(Reason.UNTRUSTED, "node(s) had pods with unknown CPUs", why, resolvable=False)
        return None

    def _derive(self, node: Node, booked: Ledger, nominees: Mapping[str, Nominee]) -> NodeSnapshot:
        topology = self.topology
        offer: Offer | None = self.inventory
        if offer is None and topology is not None:
            offer = self._kubelet_view(node, topology, booked, nominees)
            if self.explore_later is not None:
                # A decision is continued on the cached snapshot only, and only if that is without nominees.
                is_kept = nominees is self.nominees and not nominees
                offer.evaluate_in_slices(partial(self.explore_later, self.name) if is_kept else None)
        if offer is None:
            raise AssertionError(f"node {node.name} has neither an inventory nor a kubelet-owned topology")
        return NodeSnapshot(
            node=node,
            offer=offer,
            ledger=booked,
            allocatable=self.allocatable,
            ports=self._ports_with(nominees),
            barred=self.barred(),
            devices=self.devices,
            nominated=tuple([it.pod for uid, it in nominees.items() if uid not in self.pods and not it.counted]),
        )

    def _kubelet_view(
        self, node: Node, topology: NodeResourceTopology, booked: Ledger, nominees: Mapping[str, Nominee]
    ) -> KubeletView:
        coming = {uid: it.pod.request for uid, it in nominees.items()}
        pods = NodePods(booked, coming, self.unreported.hidden, self.admitted_counts(), bool(self.pods))
        return self.history.view(node, topology, pods, self._surely_shown())

    def _surely_shown(self) -> Iterator[tuple[PodKey, PodDemand]]:
        """Yield the pods that have been running since before the topology was created and do not terminate."""
        hidden = self.unreported.hidden
        for uid, pod in self.pods.items():
            if pod.started and not pod.deleting and uid not in hidden:
                yield pod.key, pod_demand(pod.request)

    def _ports_with(self, nominees: Mapping[str, Nominee]) -> tuple[HostPort, ...]:
        if not self._ports and not nominees:
            return ()
        ports = [port for wanted in self._ports.values() for port in wanted]
        ports += [port for nominee in nominees.values() for port in nominee.pod.request.constraints.host_ports]
        return tuple(ports)

    def _others(self, pod: Pod) -> dict[str, Nominee]:
        """Return the nominees other than this pod that are not counted yet."""
        return {uid: it for uid, it in self.nominees.items() if uid != pod.key.uid and uid not in self.pods}

    def _seen_with(self, nominees: Mapping[str, Nominee]) -> NodeSnapshot | None:
        # Nothing is omitted: use the cached snapshot.
        if self.node is None or len(nominees) == len(self.nominees):
            return self.candidate()
        return self._derive(self.node, self._ledger_with(nominees), nominees)

    def _ledger_with(self, nominees: Mapping[str, Nominee]) -> Ledger:
        """Return the ledger including these nominees. A nominee that is counted already has no reservation."""
        kept = [nominee.holding for uid, nominee in nominees.items() if uid not in self.ledger]
        return Ledger.of([*self.counted, *kept]) if kept else self.counted


def unread_of(info: NodeInfo) -> tuple[str, ...]:
    """Return a sentence for each key of the node's objects that is similar to a known key."""
    return (*(info.node.unread if info.node else ()), *(info.current.unread if info.current else ()))
