"""The configured defaults of allocation. Values only; every field says for whom it counts."""

from dataclasses import dataclass, field
from enum import Enum

from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    NumaAllocateStrategy,
    NumaExclusive,
    NumaPolicy,
    RestrictedRule,
)
from koord_numa.core.score.numa_scores import Strategy
from koord_numa.core.state.numa_free import Accounting


class WithoutTopology(Enum):
    """What becomes of a pod that wants NUMA alignment on a node without NUMA data."""

    REFUSE = "refuse"
    PERMIT = "permit"


@dataclass(frozen=True, slots=True)
class AllocateOptions:
    """
    The configured defaults. ``bind`` is for pods with own CPUs that name no policy (``NONE``: they get none of their own);
    ``numa_policy`` for pods with own CPUs where neither pod nor node names one; ``exclusive`` for pods that name a NUMA policy
    but no exclusivity; ``strategy`` for nodes that name none. ``scoring`` ranks equally wide sets of NUMA nodes.
    ``restricted``: which sets Restricted prefers.
    """

    bind: CpuBindPolicy = CpuBindPolicy.FULL_PCPUS
    numa_policy: NumaPolicy = NumaPolicy.BEST_EFFORT
    exclusive: NumaExclusive = NumaExclusive.REQUIRED
    strategy: NumaAllocateStrategy = NumaAllocateStrategy.LEAST_ALLOCATED
    scoring: Strategy | None = field(default_factory=Strategy)
    without_topology: WithoutTopology = WithoutTopology.REFUSE
    accounting: Accounting = Accounting.EVERY_POD
    restricted: RestrictedRule = RestrictedRule.EMPTY_NODE
