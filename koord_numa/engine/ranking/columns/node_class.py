"""
Kinds of nodes: what the objects of many nodes say alike, so that a request class judges a kind once and not each of its nodes.

A kind knows nothing of names, labels, amounts or pods.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Self

from koord_numa.core.kubelet.options import ARCHITECTURE, STATIC_CPUS, CoreEvidence, core_rule, likely_config
from koord_numa.core.kubelet.view import core_rule_of
from koord_numa.core.objects.node import KubeletConfig, Node, Taint
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy, NodeBindPolicy, NumaAllocateStrategy, NumaPolicy
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.node_info import NodeInfo


def _is_number(value: str) -> bool:
    """Time stamps, such as cluster-autoscaler writes into taints: other values of one taint would be as many classes."""
    return value.isdecimal()


def _without_number(taint: Taint) -> Taint:
    return replace(taint, value="0") if _is_number(taint.value) else taint


def compares_numbers(request: PodRequest) -> bool:
    """Does a toleration name a taint's value that is a number? Then the class of a node does not tell whether it is tolerated."""
    return any(_is_number(each.value) for each in request.constraints.tolerations)


@dataclass(frozen=True, slots=True)
class NodeClass:
    """
    ``example`` is some node of the kind: its cordon, taints, features and problem are those of all. ``config`` is present where a kubelet
    chooses. Exclusive CPUs must then be a multiple of ``threads``: a pod that breaks this rule is refused there, or, where
    ``explores``, goes there to find out whether it holds.

    Otherwise ``zones`` tells whether NUMA nodes are published that are ours to align on, ``policy`` which NUMA policy the node names, and
    ``pins`` whether every pod with whole CPUs may get its own. ``aligns_by_default``: pods with CPUs of their own are aligned there by the
    configured policy.
    """

    example: Node
    config: KubeletConfig | None = None
    threads: int = 1
    explores: bool = False
    zones: bool = False
    policy: NumaPolicy = NumaPolicy.NONE
    pins: bool = False
    aligns_by_default: bool = False

    @classmethod
    def of(cls, record: NodeInfo, node: Node) -> Self:
        """The kind of one node."""
        offer, topology = record.inventory, record.topology
        if any(_is_number(taint.value) for taint in node.taints):
            # Values that are numbers (time stamps) would make every node a class of its own.
            node = replace(node, taints=tuple(_without_number(taint) for taint in node.taints))
        if isinstance(offer, Inventory):
            pins = offer.static_kubelet or offer.bind is not NodeBindPolicy.NONE
            aligns = bool(offer.zones) and not offer.never_aligned
            aligns = aligns and offer.strategy is not NumaAllocateStrategy.DISTRIBUTE_EVENLY
            return cls(node, zones=bool(offer.zones), policy=offer.policy, pins=pins, aligns_by_default=aligns)
        return cls(node, None if offer is not None or topology is None else likely_config(topology))

    @property
    def key(self) -> Hashable:
        """Equal for nodes of one kind."""
        node, config = self.example, self.config
        settings = config and (
            config.topology_policy,
            config.topology_scope,
            config.cpu_policy,
            tuple(sorted(config.cpu_options.items())),
        )
        own = self.zones, self.policy, self.pins, self.aligns_by_default
        # Whatever ``fits_node_object`` and the bounds read, and nothing else: names and labels are judged by row.
        return node.problem, node.unschedulable, node.taints, node.features, settings, self.threads, self.explores, *own

    def with_pods(self, record: NodeInfo) -> "NodeClass":
        """The kind that the pods make of this node which its kubelet has admitted: they may prove that no whole cores have to be kept."""
        node, topology = record.node, record.topology
        # Only a static CPU manager keeps whole cores.
        if self.config is None or self.config.cpu_policy != STATIC_CPUS or node is None or topology is None:
            return self
        history, architecture = record.history, node.labels.get(ARCHITECTURE, "")
        kept, frame = history.evidence.keeps_cores, history.frame
        evidence = CoreEvidence(record.admitted_counts(), kept)
        if frame is not None and frame.topology is topology:  # as a view sees it, which remembers the rule
            rule = core_rule_of(frame, architecture, evidence)
        else:
            rule = core_rule(topology.kubelet, topology.zones, architecture, evidence)
        threads = 1 if rule is None else rule.threads
        if threads == self.threads and self.explores == (not kept):
            return self
        return replace(self, threads=threads, explores=not kept)

    @property
    def wants_one(self) -> bool:
        """Does the node accept placements on a single NUMA node only, where it aligns at all?"""
        if self.config is not None:
            return self.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE
        return self.zones and self.policy is NumaPolicy.SINGLE_NUMA_NODE
