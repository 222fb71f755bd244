"""When a rebind is worth while: a waiting pod would fit, or the node becomes better by as much as is asked for."""

from dataclasses import dataclass

from koord_numa.core.rebind.arrangement.layout import NodeLayout
from koord_numa.core.rebind.arrangement.numa_amounts import amounts_after
from koord_numa.core.rebind.plan import RebindPlan
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import replace


@dataclass(frozen=True, slots=True)
class Threshold:
    """By how many NUMA crossings, or by how many CPUs of its largest free block, a node must improve."""

    crossings: int = 1
    block: int = 4


def improvement(plan: RebindPlan, least: Threshold) -> str:
    """What the plan improves, in one clause; empty when that is too little to move pods for."""
    fewer = plan.before.crossings - plan.after.crossings
    # Crossings before blocks, as in the figures by which plans are compared.
    if fewer >= least.crossings:
        return f"NUMA crossings {plan.before.crossings} → {plan.after.crossings}"
    before, after = (max(figures.largest_block.values(), default=0) for figures in (plan.before, plan.after))
    return f"largest free block {before} → {after} CPUs" if after - before >= least.block else ""


def ledger_after(ledger: Ledger, layout: NodeLayout, plan: RebindPlan) -> Ledger:
    """The ledger of the node as it would be at the end of the plan."""
    ends = {move.pod.uid: move.after for move in plan.moves}
    return Ledger.of(
        replace(
            holding, cpus=ends[holding.pod.uid], numa=amounts_after(holding.numa, layout.machine, ends[holding.pod.uid])
        )
        if holding.pod.uid in ends
        else holding
        for holding in ledger
    )
