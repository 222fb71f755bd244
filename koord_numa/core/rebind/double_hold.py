"""
CPUs that two pods hold: which, by whom, and other CPUs for one of the two. It changes nothing.

No decision gives a held CPU away, so this comes from outside: a second acting scheduler, a writer of resource-status, or a bind that
outlived its leader's lease.
"""

from dataclasses import dataclass

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.ordering import age_key
from koord_numa.core.rebind.arrangement.from_ledger import DEFAULTS, Defaults, layout_of_ledger
from koord_numa.core.rebind.place_pod import place
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import replace


@dataclass(frozen=True, slots=True)
class DoubleHold:
    """``cpus`` belong to ``older`` by its resource-status and to ``younger`` by its own: the pod that was created later."""

    cpus: CpuSet
    older: PodKey
    younger: PodKey

    def __str__(self) -> str:
        return f"CPUs {self.cpus} belong to {self.older} and to {self.younger} by their resource-status"


def double_holds(ledger: Ledger) -> tuple[DoubleHold, ...]:
    """
    Every pair of pods that hold the same CPUs, older pods first; empty at once where no CPU has two holders.

    Of equal age the larger uid is the younger: two replicas name the same pod.
    """
    if not ledger.shared:
        # Nearly always: the ledger keeps the set of shared CPUs, so that nodes in order cost nothing.
        return ()
    holders = sorted((held for held in ledger if held.cpus & ledger.shared), key=_age)
    return tuple(
        # Every pair, since three holders of one CPU are two conflicts.
        DoubleHold(both, older.pod, younger.pod)
        for index, younger in enumerate(holders)
        for older in holders[:index]
        if (both := older.cpus & younger.cpus)
    )


def replacement_cpus(inventory: Inventory, ledger: Ledger, uid: str, defaults: Defaults = DEFAULTS) -> CpuSet | None:
    """
    As many CPUs for this pod as it has, none of which another pod holds; ``None`` when there are not enough.

    They are chosen as a rebind would: on the same NUMA nodes where the pod has memory or devices there, and no worse than today where
    that is possible. Raises ``ValueError`` for a node whose CPUs are unknown, ``KeyError`` for a pod that holds nothing.
    """
    held = ledger.holdings[uid]
    # A ledger without the pod, as its own CPUs must count as free for it.
    others = Ledger.of(holding for holding in ledger if holding.pod.uid != uid)
    # Alone the pod shares no CPU, so that the layout lets it move; then the CPUs of all others are closed to it.
    alone = layout_of_ledger(inventory, Ledger.of([held]), (), defaults)
    if not alone.pods:
        return None  # it holds CPUs that are reserved, or that the machine does not have
    layout = replace(layout_of_ledger(inventory, others, others.holdings, defaults), pods=alone.pods)
    bits = place(layout, (held.cpus.bits,), 0, inventory.cpus.bits & ~inventory.reserved.bits & ~others.bits)
    return None if bits is None or bits & others.bits else CpuSet(bits)


def _age(holding: Holding) -> tuple[float, str]:
    return age_key(holding.created, holding.pod.uid)
