"""
Feasibility of one need on many nodes at once: by the numbers that an election uses, a row a node, a column a NUMA node.

Theory. Resources are counted, so a set of NUMA nodes can hold a pod when the whole units of its members add up, and a wider
set can whenever a narrower one can. SingleNUMANode needs one NUMA node with enough of everything. Restricted may use any set
without a NUMA node that lacks some wanted resource; the widest such set decides. BestEffort may use them all. The answer is
exact for pods without a required exclusivity and without ConstrainedBurst, and never too strict for the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koord_numa.core.accounts import Accounts, PerNuma
from koord_numa.core.allocation.need import Need, offers
from koord_numa.core.amounts import CPU
from koord_numa.core.amplify import amplify
from koord_numa.core.cpus.ask import UNOCCUPIED
from koord_numa.core.vocabulary import NumaPolicy

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ENOUGH: Final = 2**60
"""What there is of a resource that no NUMA node of a node publishes: it does not matter there."""


@dataclass(frozen=True, slots=True)
class NumaSummary:
    """
    Of one node, for one shape of need: what each NUMA node can give in whole units, by wanted resource.

    ``lacks`` marks NUMA nodes with nothing left of some wanted resource. ``unclaimed`` is what all of them together have beyond
    pods whose NUMA node nobody knows, own CPUs weighed as the need weighs them.
    """

    whole: Mapping[str, PerNuma]
    lacks: tuple[bool, ...]
    unclaimed: Mapping[str, int]


def summarise(need: Need, books: Accounts) -> NumaSummary:
    """The numbers of one node. They depend on the need's resources, binding and ratio only, not on its amounts."""
    room = offers(need, books, UNOCCUPIED)
    lacking = 0
    for mask in room.lacking.values():
        lacking |= mask
    return NumaSummary(
        whole={
            name: tuple(n // room.units[name] * room.units[name] for n in given) for name, given in room.given.items()
        },
        lacks=tuple(bool(lacking >> numa & 1) for numa in books.numa_ids),
        unclaimed={name: books.unclaimed(name) for name in room.given if name in books.loose},
    )


def feasible(need: Need, summaries: Sequence[NumaSummary]) -> Bools:
    """For each node: can an allocation of this need be placed there under its policy? One policy and ratio for all of them."""
    width = max((len(summary.lacks) for summary in summaries), default=0)
    usable = _rows([tuple(not lacks for lacks in summary.lacks) for summary in summaries], width) > 0
    result = np.ones(len(summaries), dtype=np.bool_)
    together = np.ones((len(summaries), width), dtype=np.bool_)
    for name, amount in need.amounts.items():
        weight = amplify(amount, need.ratio) if name == CPU and need.binding else amount
        result &= np.array([summary.unclaimed.get(name, ENOUGH) >= weight for summary in summaries], dtype=np.bool_)
        published = [summary.whole.get(name) for summary in summaries]
        there = _rows([row if row is not None else (ENOUGH,) * width for row in published], width)
        if need.policy is NumaPolicy.SINGLE_NUMA_NODE:
            together &= there >= amount
        elif need.policy is NumaPolicy.RESTRICTED:
            result &= np.minimum(np.where(usable, there, 0), amount).sum(axis=1) >= amount
        elif need.policy is NumaPolicy.BEST_EFFORT or (need.binding and name == CPU):
            result &= np.minimum(there, amount).sum(axis=1) >= amount
    if need.policy is NumaPolicy.SINGLE_NUMA_NODE:
        result &= together.any(axis=1)
    return result


def _rows(rows: Sequence[Sequence[int]], width: int) -> Ints:
    """One array; NUMA nodes that a node does not have are 0."""
    table = np.zeros((len(rows), width), dtype=np.int64)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return table
