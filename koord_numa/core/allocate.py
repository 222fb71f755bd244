"""
Allocation on a node whose CPUs the scheduler owns: from one pod and one node to a placement, or a refusal with numbers.

Pure and repeatable: same request, inventory, ledger and options, same answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from koord_numa.core.inventory import Inventory
from koord_numa.core.ledger import Ledger
from koord_numa.core.request import PodRequest
from koord_numa.core.verdicts import Placement, Rejection
from koord_numa.core.vocabulary import CpuBindPolicy, NumaAllocateStrategy, NumaExclusive, NumaPolicy, ScoringType


class Accounting(Enum):
    """Who counts against a NUMA node: every pod on the node, or only recorded NUMA amounts (as Koordinator, which overcommits)."""

    EVERY_POD = "every pod"
    RECORDED_AMOUNTS = "recorded amounts"


class WithoutTopology(Enum):
    """What becomes of a pod that wants NUMA alignment on a node without NUMA data."""

    REFUSE = "refuse"
    PERMIT = "permit"


@dataclass(frozen=True, slots=True)
class NumaScoring:
    """How sets of NUMA nodes of one size are ranked: by strategy, with a weight per resource."""

    type: ScoringType = ScoringType.LEAST_ALLOCATED
    weights: Mapping[str, int] = field(default_factory=lambda: {"cpu": 1, "memory": 1})


@dataclass(frozen=True, slots=True)
class AllocateOptions:
    """
    The configured defaults. ``bind`` is for pods with own CPUs that name no policy (``NONE``: they get none of their own);
    ``numa_policy`` for pods with own CPUs where neither pod nor node names one; ``exclusive`` for pods that name a NUMA policy
    but no exclusivity; ``strategy`` for nodes that name none.
    """

    bind: CpuBindPolicy = CpuBindPolicy.FULL_PCPUS
    numa_policy: NumaPolicy = NumaPolicy.BEST_EFFORT
    exclusive: NumaExclusive = NumaExclusive.REQUIRED
    strategy: NumaAllocateStrategy = NumaAllocateStrategy.LEAST_ALLOCATED
    scoring: NumaScoring | None = field(default_factory=NumaScoring)
    without_topology: WithoutTopology = WithoutTopology.REFUSE
    accounting: Accounting = Accounting.EVERY_POD


def allocate(
    request: PodRequest, inventory: Inventory, ledger: Ledger, options: AllocateOptions
) -> Placement | Rejection:
    """Place one pod on one node, or say with numbers why not."""
    raise NotImplementedError
