"""
An arrangement that is being improved: it knows its own worth, and whether a change of a few CPU sets would make it better.

Theory. A search asks thousands of times what happens when one, two or a few pods sit elsewhere. Their own shares are subtracted
and added, and only when that looks promising the rest is counted: neighbours, free blocks, room. *Regression* is by how much pods would be
worse off than today, required policies broken, the largest block smaller and NUMA nodes overdrawn: an arrangement without regression
is one that the layout allows, and less regression counts more than anything else.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from koord_numa.core.rebind.arrangement.layout import Arrangement, ConflictCount, Figures, NodeLayout

Changes = Mapping[int, int]
"""New CPU bits by the index of the pod."""


@dataclass(frozen=True, slots=True)
class EvaluatedLayout:
    """
    One CPU set per pod of a layout, the CPUs that stay free, and how good that is.

    ``pod_regression`` is the part of ``regression`` that pods have seen alone, without their neighbours.
    """

    layout: NodeLayout
    assigned: Arrangement
    free: int
    pod_regression: int
    regression: int
    figures: Figures
    conflict_count: ConflictCount

    @property
    def rank(self) -> tuple[int, Figures]:
        """Smaller is better."""
        return self.regression, self.figures

    def improved(self, changes: Changes) -> "EvaluatedLayout | None":
        """The evaluated layout after these changes if it is better than this one. CPU sets that change must fit what is then free."""
        layout, figures = self.layout, self.figures
        assigned, free, taken = list(self.assigned), self.free, 0
        pod_regression, crossings, splits, moves = (
            self.pod_regression,
            figures.crossings,
            figures.split_cores,
            figures.moves,
        )
        concerns = False
        for index, bits in changes.items():
            old, new = layout.shape_of(index, assigned[index]), layout.shape_of(index, bits)
            crossings += new.numa_nodes - old.numa_nodes
            splits += new.split_cores - old.split_cores
            pod_regression += new.regression - old.regression
            moves += (bits != layout.now[index]) - (assigned[index] != layout.now[index])
            # The old CPUs are free from here on; ``taken`` is subtracted at the end, as later changes may use them.
            free |= assigned[index]
            taken |= bits
            assigned[index] = bits
            concerns = concerns or index in layout.constrained
        # The cheap part first: blocks and neighbours are counted only for changes that may be better.
        if pod_regression > self.regression or (
            pod_regression == self.regression and (crossings, splits) > figures[:2]
        ):
            return None
        # Neighbours are recounted only where a pod changes whose place matters to others.
        conflict_count = layout.conflict_count(assigned) if concerns else self.conflict_count
        free &= ~taken
        block, most = layout.largest_block(free)
        made = EvaluatedLayout(
            layout=layout,
            assigned=tuple(assigned),
            free=free,
            pod_regression=pod_regression,
            regression=pod_regression
            + conflict_count.regression
            + layout.shrunk(crossings, block)
            + layout.overdrawn(free)
            + layout.overloaded(assigned),
            figures=Figures(crossings, splits, conflict_count.total, -block, -most, moves),
            conflict_count=conflict_count,
        )
        return made if made.rank < self.rank else None


def evaluate(layout: NodeLayout, assigned: Arrangement) -> EvaluatedLayout:
    """A whole arrangement counted from nothing. Sizes and CPUs per NUMA node must be as the pods need them."""
    free, figures, conflict_count = layout.free(assigned), layout.figures(assigned), layout.conflict_count(assigned)
    pod_regression = sum(layout.shape_of(index, bits).regression for index, bits in enumerate(assigned))
    shrunk = layout.shrunk(figures.crossings, -figures.minus_block)
    regression = (
        pod_regression + conflict_count.regression + shrunk + layout.overdrawn(free) + layout.overloaded(assigned)
    )
    return EvaluatedLayout(layout, assigned, free, pod_regression, regression, figures, conflict_count)
