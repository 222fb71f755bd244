"""Keep the columns of all nodes up to date: free amounts of nodes and of their NUMA nodes."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np

from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.resources import CPU, MEMORY, MILLI, NOTHING, PODS, ResourceList
from koord_numa.core.score.node_scores import MAX_SCORE, is_device
from koord_numa.core.state.inventory import STATIC, Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.core.state.numa_free import numa_left
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.ranking.label_columns import ImageColumns, LabelColumns
from koord_numa.engine.ranking.node_numbers import (
    DIVISORS,
    FIRST_RESOURCES,
    FREE,
    SPACE,
    SPARES,
    UNLIMITED,
    Ints,
    Journal,
    NameOrder,
    NodeClass,
    NodeNumbers,
    longer,
)
from koord_numa.engine.ranking.pod_counts import PodCounts

MOST_HELD: Final = 1 << 50
MOST_OFFERED: Final = 1 << 52
"""
Amounts saturate in the table, so that no sum or product of them leaves 64 bits: a pebibyte held and a pebibyte wanted are within the four
that are offered, and a hundred times that is within 2**63. What is beyond is for ``evaluate`` to tell, which has no limits.
"""

LEAST_FREE: Final = -MAX_SCORE * MOST_HELD

MOST_LINES: Final = 256
"""Resources with a line of their own. Of others, whose names any user may invent in a pod, only ``evaluate`` knows."""

CPU_LINE, MEMORY_LINE, PODS_LINE = range(len(FIRST_RESOURCES))


class AmountTable:
    """
    ``offered[resource, row]`` is what there is; ``resources`` says which resource is where. ``bare`` are rows without CPUs or memory.
    """

    def __init__(self, numbers: NodeNumbers) -> None:
        self._numbers = numbers
        self.resources = numbers.resources
        self.offered: Ints = np.zeros((len(self.resources), len(numbers.rows)), dtype=np.int64)
        self.bare: set[int] = set()
        # By row, a hundredfold, what is offered of each resource, and how many pods may be there.
        self._offers: dict[int, list[int]] = {}
        self._devices: dict[int, tuple[tuple[str, int], ...]] = {}  # by row, how many there are, of rows that have any

    @property
    def spares(self) -> Ints:
        """By row, the percent of the least used device, 100 without any."""
        spares: Ints = MAX_SCORE + self._numbers.rows[:, SPARES]
        return spares

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        self.offered = longer(self.offered, rows)

    def place(self, resource: str) -> None:
        """A line for a resource that is new."""
        if resource not in self.resources:
            self._numbers.add_resource(resource)
            self.offered = np.pad(self.offered, ((0, 1), (0, 0)))
            for offered in self._offers.values():
                offered.append(0)

    def offer(self, row: int, allocatable: ResourceList) -> None:
        """The objects of a row's node changed. ``write`` has to follow."""
        for resource in allocatable:
            if len(self.resources) < MOST_LINES:
                self.place(resource)
        offered = [min(allocatable.get(resource, 0), MOST_OFFERED) for resource in self.resources]
        offered[PODS_LINE] = min(allocatable.get(PODS, UNLIMITED), MOST_OFFERED)
        self._offers[row] = [MAX_SCORE * amount for amount in offered]
        self.offered[:, row] = offered
        self._numbers.rows[row, DIVISORS] = max(1, offered[CPU_LINE]), max(1, offered[MEMORY_LINE])
        if allocatable.get(CPU) and allocatable.get(MEMORY):
            self.bare.discard(row)
        else:
            self.bare.add(row)
        self._note_devices(row, allocatable)

    def write(self, row: int, booked: Ledger, *, takes_pods: bool) -> None:
        """Pods came to a row's node or went."""
        amounts, lines = booked.amounts, self.resources
        offered = self._offers.get(row) or [0] * len(lines)
        free = offered.copy()
        for name, amount in amounts.items():
            if name in lines:  # what has no line is offered nowhere
                free[lines[name]] -= MAX_SCORE * amount
        free[PODS_LINE] = offered[PODS_LINE] - MAX_SCORE * len(booked.holdings) if takes_pods else 0
        if min(free) < LEAST_FREE:  # never, outside of tests
            free = [max(amount, LEAST_FREE) for amount in free]
        spare = 0
        if (devices := self._devices.get(row)) is not None:
            spare = min(0, *[amounts.get(name, 0) * MAX_SCORE // count - MAX_SCORE for name, count in devices])
        self._numbers.whole.write(row, (spare, *free))

    def refuse(self, row: int) -> None:
        """Nothing may go to this row."""
        self._numbers.rows[row, FREE + PODS_LINE] = 0

    def forget(self, row: int) -> None:
        """The row's node is gone."""
        self.bare.discard(row)
        self._note_devices(row, NOTHING)

    def _note_devices(self, row: int, allocatable: ResourceList) -> None:
        devices = tuple((name, count) for name, count in allocatable.items() if count > 0 and is_device(name))
        if devices:
            self._devices[row] = devices
        elif self._devices.pop(row, None):
            self._numbers.rows[row, SPARES] = 0


REMEMBERED_SUMS: Final = 4096
"""Machines are alike, and so are pods: most amounts have been seen before on some row."""


class NumaTable:
    """Of what a kubelet has only CPUs are listed, where it hands them out itself."""

    def __init__(self, numbers: NodeNumbers) -> None:
        self._numbers = numbers
        # By row, of which inventory and ledger it was written, and of which revision of the ledger's amounts on NUMA nodes.
        self._written: dict[int, tuple[Inventory, Ledger, int]] = {}
        # By row, what it was written of where a kubelet chooses.
        self._listed: dict[int, Mapping[str, list[int]]] = {}

    def write(self, row: int, record: NodeInfo) -> None:
        """Bring one row up to date. No inventory at all means that a kubelet chooses."""
        offer = record.inventory
        if isinstance(offer, Inventory):
            self._write_left(row, offer, record.booked)
        else:
            self._write_listed(row, _listed(record) if offer is None else {})

    def _write_left(self, row: int, offer: Inventory, booked: Ledger) -> None:
        """Of a node whose CPUs the scheduler hands out. Many pods hold nothing of a NUMA node, and leave the row as it is."""
        written, revision = self._written.get(row), booked.numa_revision
        is_new = written is None or written[0] is not offer
        if written is not None and not is_new and written[2] == revision and written[1] is booked:
            return
        self._written[row] = offer, booked, revision
        free = numa_left(offer, booked)
        if is_new:  # else there has been room for the same resources and NUMA nodes before
            self._listed.pop(row, None)
            self._begin(row, free)
        self._put(row, free)

    def _write_listed(self, row: int, free: Mapping[str, list[int]]) -> None:
        """Of any other node. Most pods hold no CPUs of their own where a kubelet chooses."""
        self._written.pop(row, None)
        listed = self._listed.get(row)
        if listed == free:
            return
        self._listed[row] = free
        # Nothing but CPUs is listed.
        if listed is None or len(listed.get(CPU, ())) != len(free.get(CPU, ())):
            self._begin(row, free)
        self._put(row, free)

    def _begin(self, row: int, free: Mapping[str, list[int]]) -> None:
        """What the row lists may be new. Unlisted resources bound nothing: the row must stay an upper bound."""
        self._numbers.make_room(free)
        self._numbers.reach[:, row] = UNLIMITED

    def _put(self, row: int, free: Mapping[str, list[int]]) -> None:
        numbers = self._numbers
        for name, amounts in free.items():
            if amounts:
                numbers.reach[numbers.places[name], row] = _sums(tuple(amounts), numbers.counts)

    def forget(self, row: int) -> None:
        """The row's node is gone."""
        self._written.pop(row, None)
        self._listed.pop(row, None)


@lru_cache(maxsize=REMEMBERED_SUMS)
def _sums(amounts: tuple[int, ...], counts: int) -> Ints:
    """What the emptiest NUMA node has, what the two emptiest have together and so on: as many sums as are asked for."""
    emptiest = sorted(amounts, reverse=True)
    # A NUMA node may owe more than it has (CPUs reserved under pods); it takes nothing from what others have free.
    if emptiest[-1] < 0 or emptiest[0] > UNLIMITED:
        emptiest = [min(max(0, amount), UNLIMITED) for amount in emptiest]
    sums = [*accumulate(emptiest)]
    found = np.array(sums + sums[-1:] * (counts - len(sums)), dtype=np.int64)
    found.setflags(write=False)  # others have the same
    return found


def _listed(record: NodeInfo) -> Mapping[str, list[int]]:
    """What each NUMA node has free where a kubelet chooses, by resource; resources that are not listed are unlimited."""
    topology = record.topology
    if topology is not None and _hands_out_cpus(topology):
        return {CPU: _kubelets_cpus(record, topology)}
    return {}


def _hands_out_cpus(topology: NodeResourceTopology) -> bool:
    # An unpublished policy may be the static one, as zones that list CPUs say.
    if topology.kubelet.cpu_policy not in (None, STATIC):
        return False
    return bool([zone for zone in topology.zones if zone.allocatable.get(CPU)])


def _kubelets_cpus(record: NodeInfo, topology: NodeResourceTopology) -> list[int]:
    # Of a kubelet that is followed the most that any hypothesis leaves free: the table must not be too small.
    followed = record.history.most_cpus()
    if followed is not None:
        return [MILLI * followed.get(zone.numa, 0) for zone in topology.zones]
    held = _hidden_cpus(record)
    # May be below zero where pods that are not shown yet are charged; ``_sums`` cuts it.
    return [zone.available.get(CPU, 0) - held.get(zone.numa, 0) for zone in topology.zones]


def _hidden_cpus(record: NodeInfo) -> dict[int, int]:
    """Milli-CPU by NUMA id that pods hold which the topology does not show yet."""
    ledger = record.counted
    holdings = ledger.holdings
    # Pods that are surely gone hold nothing, whether the topology shows that yet or not.
    hidden = record.unpublished if ledger is record.ledger else record.unpublished & holdings.keys()
    if not hidden:
        return {}
    # The ledger has the sum of all pods, so that the fewer of hidden and shown ones are looked at.
    most = 2 * len(hidden) > len(holdings)
    held = {numa: amounts.get(CPU, 0) for numa, amounts in ledger.numa.items()} if most else {}
    if len(hidden) == len(holdings):
        return held
    few, sign = (holdings.keys() - hidden, -1) if most else (hidden, 1)
    for uid in few:
        for numa, amounts in holdings[uid].numa:
            held[numa] = held.get(numa, 0) + sign * amounts.get(CPU, 0)
    return held


FIRST_ROWS: Final = 64
NO_NODE: Final = NodeClass(Node(""))
"""The kind of a row that has not been written."""


def _raise(_node: str, error: Exception) -> None:
    raise error


class NodeTable:
    """
    One row a node, reused when the node is gone. ``journal`` lists rows in the order they changed: who remembers results
    about rows re-reads those after the position it has seen.
    """

    def __init__(self) -> None:
        self.records: list[NodeInfo | None] = []
        self.row_of: dict[str, int] = {}
        self.order = NameOrder()
        self.journal = Journal()
        self.kinds: Ints = np.zeros(FIRST_ROWS, dtype=np.int64)  # by its number, what kind of node it is
        self.known_kinds: list[NodeClass] = [NO_NODE]
        self.numbers = NodeNumbers(FIRST_ROWS)
        self.amounts = AmountTable(self.numbers)  # the bars of single classes are not known there
        self.zones = NumaTable(self.numbers)
        self.ranks: Ints = np.zeros(FIRST_ROWS, dtype=np.int64)  # by name: the larger the earlier, less than ``SPACE``
        self.labels = LabelColumns(FIRST_ROWS, self._nodes)
        self.images = ImageColumns(FIRST_ROWS)
        self.pods = PodCounts(self.row_of.get, FIRST_ROWS)
        self.on_error: Callable[[str, Exception], None] = _raise
        self.kinds_version = 0  # grows when a number of ``known_kinds`` gets another meaning
        self.taints_version = 0  # grows when the taints of a row may have changed
        self._kind_numbers: dict[Hashable, int] = {NO_NODE.key: 0}
        self._kind_rows: list[int] = [1]  # how many rows are of each kind; the first is always kept
        self._free_kinds: list[int] = []
        self._objects: list[
            tuple[Node, NodeResourceTopology | None] | None
        ] = []  # what the columns say of a row is from these
        # By row, what its kind says that pods have proved of its kubelet.
        self._proved: dict[int, tuple[frozenset[int], bool]] = {}
        self._vacant: list[int] = []
        self._stale: set[int] = set()
        self._epoch = 0

    def __len__(self) -> int:
        """How many rows there are, vacant ones among them."""
        return len(self.records)

    @property
    def position(self) -> int:
        """The journal position after the last change."""
        return self.journal.position

    def changed(self, record: NodeInfo) -> None:
        """Something about this node changed: it came, went, or its numbers differ."""
        row = self.row_of.get(record.name)
        if record.node is None:
            # Changed more than once before the first refresh, or gone again: both are usual.
            if row is not None:
                self._vacate(row, record.name)
            return
        if row is None:
            row = self._occupy(record)
        self._stale.add(row)
        self.journal.add(row, len(self.records))

    def rows_since(self, position: int) -> list[int] | None:
        """The rows that changed since a journal position, each once, ascending; ``None`` when that is too long ago to know."""
        changed = self.journal.changes_since(position)
        # ``sorted``: rows are evaluated in their order, whatever order they changed in.
        return None if changed is None else sorted(set(changed.tolist()))

    def candidate(self, row: int) -> NodeSnapshot | None:
        """The node of a row as a decision sees it."""
        record = self.records[row]
        return None if record is None else record.candidate()

    def named(self, rows: Iterable[int]) -> list[str]:
        """Names of the nodes of these rows; vacant ones have none."""
        found = (self.records[row] for row in rows)
        return [record.name for record in found if record is not None and record.node is not None]

    def refresh(self) -> None:
        """Bring every changed row up to date."""
        # In a fixed order, since an exception is reported once and should name the same node each time.
        for row in sorted(self._stale):
            try:
                self._refresh(row)
            except Exception as error:  # noqa: BLE001 - contained: nothing goes to this node until it changes
                self.amounts.refuse(row)
                self.report(row, error)
        self._stale.clear()
        if self._epoch != self.order.epoch:
            # All numbers of names were spread again, so every rank is wrong.
            self._epoch = self.order.epoch
            for name, row in self.row_of.items():
                # The earlier the name, the larger the rank, as the maximum is looked for.
                self.ranks[row] = SPACE - self.order.number(name)

    def report(self, row: int, error: Exception) -> None:
        """Something went wrong about the node of this row."""
        record = self.records[row]
        if record is not None:
            self.on_error(record.name, error)

    def _occupy(self, record: NodeInfo) -> int:
        # Rows are reused: arrays would else grow with every node that ever was.
        if self._vacant:
            row = self._vacant.pop()
            self.records[row] = record
        else:
            row = len(self.records)
            self.records.append(record)
            self._objects.append(None)
            if row >= len(self.kinds):
                self._grow()
        self.row_of[record.name] = row
        self.order.add(record.name)
        self.pods.occupy(record.name, row)
        return row

    def _vacate(self, row: int, name: str) -> None:
        del self.row_of[name]
        self.records[row] = self._objects[row] = None
        self.order.discard(name)
        self.pods.vacate(row)
        self.labels.write(row, None)
        self.images.write(row, None)
        self.zones.forget(row)
        self.amounts.forget(row)
        self._vacant.append(row)
        # Stale and in the journal, so that readers learn of the vacancy.
        self._stale.add(row)
        self.journal.add(row, len(self.records))

    def _grow(self) -> None:
        # Doubled, so that growing costs a constant share of all writes.
        size = 2 * len(self.kinds)
        self.kinds, self.ranks = longer(self.kinds, size), longer(self.ranks, size)
        self.numbers.grow(size)
        self.amounts.grow(size)
        self.labels.grow(size)
        self.images.grow(size)
        self.pods.grow(size)

    def _nodes(self) -> Iterator[tuple[int, Node]]:
        """Every row that has a node, with it."""
        for row, record in enumerate(self.records):
            if record is not None and record.node is not None:
                yield row, record.node

    def _refresh(self, row: int) -> None:
        record = self.records[row]
        if record is None or record.node is None:
            self.amounts.refuse(row)
            return
        node, written = record.node, self._objects[row]
        # By identity: informers hand out the same objects until they change.
        if written is None or written[0] is not node or written[1] is not record.published:
            if written is None or written[0].labels != node.labels:
                self.labels.write(row, node)
            if written is None or written[0].taints != node.taints:
                self.taints_version += 1
            self.images.write(row, node.images)
            self._objects[row] = (node, record.published)
            self._proved.pop(row, None)
            self._set_kind(row, NodeClass.of(record, node))
            self.ranks[row] = SPACE - self.order.number(record.name)
            self.amounts.offer(row, record.allocatable)
        kind = self.known_kinds[int(self.kinds[row])]
        # Pods change what is proved of whole cores, so that this is looked at on every refresh.
        if kind.config is not None:
            proved = record.admitted_counts(), record.history.evidence.keeps_cores
            if proved != self._proved.get(row):
                self._set_kind(row, kind.with_pods(record))
                self._proved[row] = proved
        takes_pods = not isinstance(record.inventory, Rejection) and not node.problem and record.barred() is None
        self.amounts.write(row, record.booked, takes_pods=takes_pods)
        self.zones.write(row, record)

    def _set_kind(self, row: int, kind: NodeClass) -> None:
        """A kind that no row is of any more gives its number to the next new one."""
        former = int(self.kinds[row])
        number = self._kind_numbers.get(kind.key)
        if number is None:
            number = self._number_for(kind)
        if number == former:
            # Kinds change rarely, while rows are written all the time.
            return
        self.kinds[row] = number
        self._kind_rows[number] += 1
        if not former:
            return
        self._kind_rows[former] -= 1
        if not self._kind_rows[former]:
            del self._kind_numbers[self.known_kinds[former].key]
            self._free_kinds.append(former)

    def _number_for(self, kind: NodeClass) -> int:
        # Grows for a new number too: readers' arrays are one entry short then.
        self.kinds_version += 1
        if self._free_kinds:
            number = self._free_kinds.pop()
            self.known_kinds[number] = kind
        else:
            number = len(self.known_kinds)
            self.known_kinds.append(kind)
            self._kind_rows.append(0)
        self._kind_numbers[kind.key] = number
        return number
