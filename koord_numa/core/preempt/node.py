"""One node on which room may be made: what a decision sees of it, who is there, and for whom it is being freed. Facts only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.state.ledger import Holding
from koord_numa.core.state.node_snapshot import NodeSnapshot

ClaimId = tuple[str, str, str]
"""Namespace, name and uid of a ResourceClaim."""


@dataclass(frozen=True, slots=True)
class Nominee:
    """
    A pod for which a node is being freed, and what it is to hold there.

    ``counted``: the pod counts for affinity and spreading, as one that is there.
    """

    pod: Pod
    holding: Holding
    counted: bool = False


@dataclass(frozen=True, slots=True)
class PreemptionNode:
    """
    A node with all its pods. ``seen`` counts the pods there and the ``nominees``.

    ``pods`` and ``nominees`` are by uid. ``unpublished`` are uids of which the node's topology shows nothing yet, nominees among them;
    ``assumed`` are uids of pods whose bind is not confirmed: they are not there to be evicted.
    """

    seen: NodeSnapshot
    pods: Mapping[str, Pod]
    topology: NodeResourceTopology | None = None
    nominees: Mapping[str, Nominee] = field(default_factory=dict)
    unpublished: frozenset[str] = frozenset()
    assumed: frozenset[str] = frozenset()

    @property
    def trusted(self) -> bool:
        """Is what is known of the node good enough to evict pods for? Nothing barred, malformed or unusable is."""
        return (
            self.seen.barred is None
            and not isinstance(self.seen.offer, Rejection)
            and not self.seen.node.problem
            and not (self.topology is not None and self.topology.problem)
        )
