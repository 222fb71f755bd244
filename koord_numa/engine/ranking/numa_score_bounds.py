"""
At most how many points a placement can earn for its NUMA nodes, given at least how many of them it needs.

Theory. ``ScoreBounds`` says that the amounts of a request are found on no fewer than f NUMA nodes. Two methods of the ``numa`` score
fall with the number of NUMA nodes that a pod is on; any other may give ``MAX_SCORE``.

- FewestNUMANodes counts the NUMA nodes of an aligned placement, which takes one set for all resources: at least f.
- LeastNUMANodes (``score_placed_by_numa_nodes``) is ``100 - 12 k``, and 6 more where no set of k NUMA nodes is closer. So its bound is the
  score of f NUMA nodes with those 6, as long as k >= f. There are four ways to its k:

  1. A NUMA policy is in force: k counts the NUMA nodes of one set for all resources, as above. The set is known but on a node with a single
     NUMA node under SingleNUMANode, where f is 1; see 3 and 4.
  2. No policy is in force and the pod gets CPUs of its own: only these are counted, and they may lie on fewer NUMA nodes than its
     memory would need. k >= 1.
  3. No NUMA nodes belong to the placement and the pod is Guaranteed: k is the smallest number of NUMA nodes that have free what it
     requests, in accounts that leave no more free than the table does. k >= f. Where no NUMA node lists any of it the score is 100,
     above the bound of f = 1: such rows have f = 0 (``NOTHING_LISTED``).
  4. None belong to it and the pod is not Guaranteed: 100.

  Which of them it will be is known of the request and the node class, or the larger bound is taken.
- A kubelet's node is scored by what its zones publish, which the table does not hold: 100.

Example. A Guaranteed pod needs 12 CPUs, the node has two NUMA nodes with 8 free each and names BestEffort: f = 2, the first way, and the
bound is 100 - 24 + 6 = 82, which is also the score.
"""

from dataclasses import dataclass
from typing import Final, Self

from koord_numa.core.allocation.demand import AllocationDemand, CpuUse
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.objects.node import DEFAULT_MAX_NUMA_NODES
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import KubeQos, NodeScoring, NumaAllocateStrategy, NumaPolicy
from koord_numa.core.pod_resources import kube_qos
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.scheduling.request import Profile, SchedulingRequest
from koord_numa.core.scheduling.scorers import UNKNOWN_NUMA_NODES, alignment_points
from koord_numa.core.score.least_numa_nodes import normalized
from koord_numa.core.score.node_scores import MAX_SCORE
from koord_numa.core.score.zones import NUMA_STEP
from koord_numa.engine.ranking.columns.node_class import NodeClass

NOTHING_LISTED: Final = 0
"""The number of NUMA nodes needed where none lists any resource that is requested."""


@dataclass(frozen=True, slots=True)
class RequestAlignment:
    """
    What a request says about its alignment, before any node is looked at. ``pinned`` is the most milli-CPU that a kubelet would pin for one
    container, ``counts`` are the CPUs of each; ``amounts`` are those of the whole pod.
    """

    amounts: ResourceList
    pinned: int
    counts: tuple[int, ...]
    qos: KubeQos
    use: CpuUse
    policy: NumaPolicy  # its own
    distributes: bool  # are its CPUs spread over NUMA nodes by its own word?
    in_kubelet: bool  # does a kubelet align any of it?
    by_default: bool  # where neither it nor the node names a policy?
    default: bool  # where pods with whole CPUs get their own?

    @classmethod
    def of(cls, ask: SchedulingRequest, rules: Profile) -> Self:
        """For one request under one set of rules."""
        pod = pod_demand(ask.request)
        # A pod whose own demand is refused is refused on every node; what bounds are worth for it does not matter.
        demand = AllocationDemand(ask.amounts) if isinstance(ask.demand, Rejection) else ask.demand
        default = rules.allocate.numa_policy is not NumaPolicy.NONE
        return cls(
            amounts=ask.amounts,
            pinned=MILLI * max(pod.counts, default=0),
            counts=pod.counts,
            qos=kube_qos(ask.request),
            use=demand.use,
            policy=demand.numa,
            distributes=demand.strategy is NumaAllocateStrategy.DISTRIBUTE_EVENLY,
            in_kubelet=any(part.cpus or part.memory or part.devices for _, part in pod.containers),
            by_default=default and demand.use is not CpuUse.SHARED,
            default=default,
        )

    def may_be_on(self, kind: NodeClass) -> bool:
        """May the pod be aligned on such a node?"""
        if kind.config is not None:
            return self.in_kubelet
        return self.must_be_on(kind) or (kind.zones and (self.by_default or (self.default and kind.pins)))

    def must_be_on(self, kind: NodeClass) -> bool:
        """Is a NUMA policy in force there for sure? On nodes whose CPUs the scheduler owns."""
        # Without published NUMA nodes no policy has anything to choose from.
        if not kind.zones:
            return False
        if (self.policy, kind.policy) != (NumaPolicy.NONE, NumaPolicy.NONE) or self.use is CpuUse.POOL_OF_ONE_NUMA:
            return True
        return self.by_default and not self.distributes and kind.aligns_by_default

    def needs_one_on(self, kind: NodeClass) -> bool:
        """Would it have to sit on one NUMA node there?"""
        return kind.wants_one or (self.policy is NumaPolicy.SINGLE_NUMA_NODE and kind.config is None and kind.zones)

    def splits_cores_of(self, kind: NodeClass) -> bool:
        """Would a container split a core that has to be kept whole?"""
        return any(count % kind.threads for count in self.counts)

    def wanted_on(self, kind: NodeClass) -> ResourceList:
        """What has to be found on NUMA nodes. A kubelet looks only for CPUs that it pins, of each container by itself."""
        return self.amounts if kind.config is None else {CPU: self.pinned}


def numa_score_bound(method: NodeScoring, alignment: RequestAlignment, kind: NodeClass, fewest: int) -> int:
    """The most points, 0 to 100, that a request earns on such a node when it needs at least ``fewest`` NUMA nodes."""
    if method is NodeScoring.FEWEST_NUMA_NODES:
        # ``fewest`` 1 is the full score: 100 + 10 - 10.
        return max(0, MAX_SCORE + NUMA_STEP - NUMA_STEP * fewest) if alignment.may_be_on(kind) else 0
    # ``is not``: the value 0 is a mark here, and no count of NUMA nodes.
    if method is NodeScoring.LEAST_NUMA_NODES and kind.config is None and fewest is not NOTHING_LISTED:
        return _least_numa_nodes(alignment, kind, fewest)
    return MAX_SCORE


def alignment_bound(alignment: RequestAlignment, kind: NodeClass, fewest: int) -> int:
    """
    The most points of ``score_alignment``, for a request that wants CPUs of its own.

    Where a NUMA policy is in force for sure, the placement is on one set of NUMA nodes for all resources: at least ``fewest``. Elsewhere
    only its CPUs are counted, which may lie on one NUMA node. A pod that shares CPUs there counts as on ``UNKNOWN_NUMA_NODES``, and so may
    any pod on a kubelet's node.
    """
    if kind.config is not None:
        return alignment_points(min(fewest, UNKNOWN_NUMA_NODES) if fewest is not NOTHING_LISTED else 1)
    if alignment.use is not CpuUse.OWN:
        return alignment_points(1 if kind.pins else UNKNOWN_NUMA_NODES)
    return alignment_points(fewest if alignment.must_be_on(kind) and fewest is not NOTHING_LISTED else 1)


def _least_numa_nodes(alignment: RequestAlignment, kind: NodeClass, fewest: int) -> int:
    owns, is_guaranteed = alignment.use is CpuUse.OWN, alignment.qos is KubeQos.GUARANTEED
    # The fourth way: tied to no NUMA node, so that the score is 100 whatever is free.
    if not owns and not is_guaranteed and (alignment.needs_one_on(kind) or not alignment.must_be_on(kind)):
        return MAX_SCORE
    if not alignment.must_be_on(kind) and (owns or kind.pins):
        # The second way: only its CPUs are counted, which may lie on one NUMA node.
        fewest = 1
    return normalized(fewest, optimal=True, highest=DEFAULT_MAX_NUMA_NODES)
