"""What the pods of one kubelet-owned node ask of its managers: kept with the node's ledger, so that a decision looks at no pod again."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.objects.vocabulary import INIT
from koord_numa.core.state.ledger import Holding, Ledger

DEMANDS: Final = "demands"
"""What they are called among the sums of a ledger."""


@dataclass(slots=True, eq=False)
class KnownDemands:
    """
    ``pods`` are the demands of pods whose request is known, by uid, in the order in which they were counted; ``left`` are those of them
    with leftovers, or with init containers that may leave some.
    """

    pods: dict[str, PodDemand] = field(default_factory=dict)
    left: dict[str, PodDemand] = field(default_factory=dict)

    def count(self, holding: Holding, sign: int) -> None:
        """A pod came (1) or went (-1)."""
        uid = holding.pod.uid
        if sign < 0:
            self.pods.pop(uid, None)
            self.left.pop(uid, None)
        elif holding.request is not None:
            demand = self.pods[uid] = pod_demand(holding.request)
            if demand.leftovers or any(container.kind is INIT and part.cpus for container, part in demand.containers):
                self.left[uid] = demand

    def shown_leftovers(self, hidden: Collection[str]) -> Sequence[PodDemand]:
        """The pods but for hidden ones, by uid, if any of them has leftovers; else none."""
        if not self.left or all(uid in hidden for uid in self.left):
            return ()
        return [demand for uid, demand in self.pods.items() if uid not in hidden]


def holdings_by_uid(holdings: Ledger | list[Holding]) -> Mapping[str, Holding]:
    """Every pod's holding by its uid."""
    return holdings.holdings if isinstance(holdings, Ledger) else {held.pod.uid: held for held in holdings}


def known_demands(holdings: Ledger | list[Holding]) -> KnownDemands:
    """Of a ledger those that it keeps from now on; not to be changed, and valid until the ledger changes."""
    ledger = holdings if isinstance(holdings, Ledger) else None
    known = None if ledger is None else ledger.sums.get(DEMANDS)
    if isinstance(known, KnownDemands):
        return known
    made = KnownDemands()
    for holding in holdings:
        made.count(holding, 1)
    if ledger is not None:
        ledger.sums[DEMANDS] = made
    return made
