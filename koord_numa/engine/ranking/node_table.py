"""Columns of all nodes: free amounts of nodes and of their NUMA nodes."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np

from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.resources import CPU, MEMORY, MILLI, NOTHING, PODS, ResourceList
from koord_numa.core.score.node_scores import MAX_SCORE, is_device
from koord_numa.core.state.inventory import STATIC, Inventory, NodeSnapshot
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.state.numa_free import numa_left
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.ranking.label_columns import DeviceColumn, ImageColumns, LabelColumns
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
Amounts saturate in the table, so that no sum or product overflows 64 bits. 2**50 held plus 2**50 requested is at most the 2**52 offered,
and 100 times that is below 2**63. Larger amounts are left to ``evaluate``, which has no limits.
"""

LEAST_FREE: Final = -MAX_SCORE * MOST_HELD

MOST_LINES: Final = 256
"""Maximum number of resources with a line. Users can invent resource names in pods; only ``evaluate`` handles the others."""

CPU_LINE, MEMORY_LINE, PODS_LINE = range(len(FIRST_RESOURCES))


class AmountTable:
    """
    Amounts of whole nodes.

    ``offered[resource, row]`` is the allocatable amount; ``resources`` maps a resource to its line. ``bare`` holds rows without CPU or
    memory.
    """

    def __init__(self, numbers: NodeNumbers) -> None:
        self._numbers = numbers
        self.resources = numbers.resources
        self.offered: Ints = np.zeros((len(self.resources), len(numbers.rows)), dtype=np.int64)
        self.bare: set[int] = set()
        # By row, 100 times the allocatable amount of each resource, and the maximum number of pods.
        self._offers: dict[int, list[int]] = {}
        self._devices: dict[
            int, tuple[tuple[str, int], ...]
        ] = {}  # by row, the number of devices, for rows that have devices

    def grow(self, rows: int) -> None:
        """Add rows up to this number."""
        self.offered = longer(self.offered, rows)

    def place(self, resource: str) -> None:
        """Add a line for a resource that has none."""
        if resource not in self.resources:
            self._numbers.add_resource(resource)
            self.offered = np.pad(self.offered, ((0, 1), (0, 0)))
            for offered in self._offers.values():
                offered.append(0)

    def offer(self, row: int, allocatable: ResourceList) -> None:
        """Update the allocatable amounts of a row. The caller calls ``write`` afterwards."""
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
        """Update the free amounts of a row."""
        amounts, lines = booked.amounts, self.resources
        offered = self._offers.get(row) or [0] * len(lines)
        free = offered.copy()
        for name, amount in amounts.items():
            if name in lines:  # a resource without a line is not offered by any node
                free[lines[name]] -= MAX_SCORE * amount
        free[PODS_LINE] = offered[PODS_LINE] - MAX_SCORE * len(booked.holdings) if takes_pods else 0
        if min(free) < LEAST_FREE:  # only in tests
            free = [max(amount, LEAST_FREE) for amount in free]
        spare = 0
        if (devices := self._devices.get(row)) is not None:
            spare = min(0, *[amounts.get(name, 0) * MAX_SCORE // count - MAX_SCORE for name, count in devices])
        self._numbers.whole.write(row, (spare, *free))

    def refuse(self, row: int) -> None:
        """Set the free pods of this row to 0."""
        self._numbers.rows[row, FREE + PODS_LINE] = 0

    def forget(self, row: int) -> None:
        """Remove the data of a row without a node."""
        self.bare.discard(row)
        self._note_devices(row, NOTHING)

    def _note_devices(self, row: int, allocatable: ResourceList) -> None:
        devices = tuple((name, count) for name, count in allocatable.items() if count > 0 and is_device(name))
        if devices:
            self._devices[row] = devices
        elif self._devices.pop(row, None):
            self._numbers.rows[row, SPARES] = 0


REMEMBERED_SUMS: Final = 4096
"""Cache size. Machines and pods are similar, so that most amounts occur on several rows."""


class NumaTable:
    """Free amounts of NUMA nodes. Where the kubelet allocates CPUs, only CPUs are listed."""

    def __init__(self, numbers: NodeNumbers) -> None:
        self._numbers = numbers
        # By row, the inventory, the ledger and its revision of NUMA amounts that the row was computed from.
        self._written: dict[int, tuple[Inventory, Ledger, int]] = {}
        # By row, the amounts that the row was computed from, where the kubelet allocates CPUs.
        self._listed: dict[int, Mapping[str, list[int]]] = {}

    def write(self, row: int, record: NodeInfo) -> None:
        """Update one row. Without an inventory the kubelet allocates CPUs."""
        offer = record.inventory
        if isinstance(offer, Inventory):
            self._write_left(row, offer, record.booked)
        else:
            self._write_listed(row, _listed(record) if offer is None else {})

    def _write_left(self, row: int, offer: Inventory, booked: Ledger) -> None:
        """Update the row of a node whose CPUs the scheduler allocates. Pods without NUMA amounts do not change the row."""
        written, revision = self._written.get(row), booked.numa_revision
        is_new = written is None or written[0] is not offer
        if written is not None and not is_new and written[2] == revision and written[1] is booked:
            return
        self._written[row] = offer, booked, revision
        free = numa_left(offer, booked)
        if is_new:  # else the row has the same resources and NUMA nodes as before
            self._listed.pop(row, None)
            self._begin(row, free)
        self._put(row, free)

    def _write_listed(self, row: int, free: Mapping[str, list[int]]) -> None:
        """Update the row of any other node. Most pods hold no exclusive CPUs there."""
        self._written.pop(row, None)
        listed = self._listed.get(row)
        if listed == free:
            return
        self._listed[row] = free
        # Only CPUs are listed.
        if listed is None or len(listed.get(CPU, ())) != len(free.get(CPU, ())):
            self._begin(row, free)
        self._put(row, free)

    def _begin(self, row: int, free: Mapping[str, list[int]]) -> None:
        """Prepare the row for new resources. Resources that are not listed are unlimited, so that the row remains an upper bound."""
        self._numbers.make_room(free)
        self._numbers.reach[:, row] = UNLIMITED

    def _put(self, row: int, free: Mapping[str, list[int]]) -> None:
        numbers = self._numbers
        for name, amounts in free.items():
            if amounts:
                numbers.reach[numbers.places[name], row] = _sums(tuple(amounts), numbers.counts)

    def forget(self, row: int) -> None:
        """Remove the data of a row without a node."""
        self._written.pop(row, None)
        self._listed.pop(row, None)


@lru_cache(maxsize=REMEMBERED_SUMS)
def _sums(amounts: tuple[int, ...], counts: int) -> Ints:
    """Return ``counts`` sums: the free amount of the emptiest NUMA node, of the two emptiest, and so on."""
    emptiest = sorted(amounts, reverse=True)
    # A free amount may be negative (CPUs reserved under running pods); it does not reduce the free amounts of other
    # NUMA nodes.
    if emptiest[-1] < 0 or emptiest[0] > UNLIMITED:
        emptiest = [min(max(0, amount), UNLIMITED) for amount in emptiest]
    sums = [*accumulate(emptiest)]
    found = np.array(sums + sums[-1:] * (counts - len(sums)), dtype=np.int64)
    found.setflags(write=False)  # the cached array is shared
    return found


def _listed(record: NodeInfo) -> Mapping[str, list[int]]:
    """Return the free amount of each NUMA node where a kubelet allocates CPUs, by resource. Resources that are not listed are unlimited."""
    topology = record.topology
    if topology is not None and _hands_out_cpus(topology):
        return {CPU: _kubelets_cpus(record, topology)}
    return {}


def _hands_out_cpus(topology: NodeResourceTopology) -> bool:
    # An unpublished policy may be the static policy if the zones list CPUs.
    if topology.kubelet.cpu_policy not in (None, STATIC):
        return False
    return bool([zone for zone in topology.zones if zone.allocatable.get(CPU)])


def _kubelets_cpus(record: NodeInfo, topology: NodeResourceTopology) -> list[int]:
    # For a tracked kubelet, the maximum over all hypotheses: the table must be an upper bound.
    followed = record.history.most_cpus()
    if followed is not None:
        return [MILLI * followed.get(zone.numa, 0) for zone in topology.zones]
    held = _hidden_cpus(record)
    # May be negative where pods are charged that the topology does not show yet; ``_sums`` clips it.
    return [zone.available.get(CPU, 0) - held.get(zone.numa, 0) for zone in topology.zones]


def _hidden_cpus(record: NodeInfo) -> dict[int, int]:
    """Return the milli-CPU by NUMA id that pods hold and the topology does not show yet."""
    ledger = record.counted
    holdings = ledger.holdings
    # Pods that are certainly gone hold nothing, whether the topology shows that yet or not.
    hidden = record.unpublished if ledger is record.ledger else record.unpublished & holdings.keys()
    if not hidden:
        return {}
    # The ledger has the sum of all pods, so that the smaller set of hidden and shown pods is iterated.
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
"""Class of a row that has not been written."""


def _raise(_node: str, error: Exception) -> None:
    raise error


class NodeTable:
    """
    One row per node, reused after the node is deleted.

    ``journal`` lists rows in the order of their changes. Readers that cache results re-read the rows after their last position.
    """

    def __init__(self) -> None:
        self.records: list[NodeInfo | None] = []
        self.row_of: dict[str, int] = {}
        self.order = NameOrder()
        self.journal = Journal()
        self.kinds: Ints = np.zeros(FIRST_ROWS, dtype=np.int64)  # class number by row
        self.known_kinds: list[NodeClass] = [NO_NODE]
        self.numbers = NodeNumbers(FIRST_ROWS)
        self.amounts = AmountTable(self.numbers)  # bars of single request classes are not included
        self.zones = NumaTable(self.numbers)
        self.ranks: Ints = np.zeros(FIRST_ROWS, dtype=np.int64)  # by row, larger for earlier names, less than ``SPACE``
        self.labels = LabelColumns(FIRST_ROWS, self._nodes)
        self.images = ImageColumns(FIRST_ROWS)
        self.devices = DeviceColumn(FIRST_ROWS)
        self.pods = PodCounts(self.row_of.get, FIRST_ROWS)
        self.on_error: Callable[[str, Exception], None] = _raise
        self.kinds_version = 0  # incremented when an element of ``known_kinds`` is replaced or added
        self.steps = 0  # evaluations of nodes so far, weighted by their duration
        self.taints_version = 0  # incremented when the taints of a row may have changed
        self._kind_numbers: dict[Hashable, int] = {NO_NODE.key: 0}
        self._kind_rows: list[int] = [1]  # number of rows of each class; the first class is always kept
        self._free_kinds: list[int] = []
        self._objects: list[
            tuple[Node, NodeResourceTopology | None] | None
        ] = []  # objects that the columns of a row were computed from
        # By row, the properties of the kubelet that pods have proved, as included in the class.
        self._proved: dict[int, tuple[frozenset[int], bool]] = {}
        self._vacant: list[int] = []
        self._stale: set[int] = set()
        self._epoch = 0

    def __len__(self) -> int:
        """Return the number of rows, including vacant rows."""
        return len(self.records)

    @property
    def position(self) -> int:
        """Journal position after the last change."""
        return self.journal.position

    def changed(self, record: NodeInfo) -> None:
        """Record that this node was added, removed, or changed."""
        row = self.row_of.get(record.name)
        if record.node is None:
            # Several changes before the first refresh, including a removal, are usual.
            if row is not None:
                self._vacate(row, record.name)
            return
        if row is None:
            row = self._occupy(record)
        self._stale.add(row)
        self.journal.add(row, len(self.records))

    def rows_since(self, position: int) -> list[int] | None:
        """Return the distinct rows that changed since a journal position, ascending; ``None`` when the position is not kept any more."""
        changed = self.journal.changes_since(position)
        # ``sorted``: rows are evaluated in row order, independent of the order of changes.
        return None if changed is None else sorted(set(changed.tolist()))

    def candidate(self, row: int) -> NodeSnapshot | None:
        """Return the snapshot of the node of a row for a decision."""
        record = self.records[row]
        return None if record is None else record.candidate()

    def named(self, rows: Iterable[int]) -> list[str]:
        """Return the names of the nodes of these rows, without vacant rows."""
        found = (self.records[row] for row in rows)
        return [record.name for record in found if record is not None and record.node is not None]

    def refresh(self) -> None:
        """Update all changed rows."""
        # In a fixed order: an exception is reported once and should always name the same node.
        for row in sorted(self._stale):
            try:
                self._refresh(row)
            except Exception as error:  # noqa: BLE001 - contained: nothing goes to this node until it changes
                self.amounts.refuse(row)
                self.report(row, error)
        self._stale.clear()
        if self._epoch != self.order.epoch:
            # All names were renumbered, so that all ranks are outdated.
            self._epoch = self.order.epoch
            for name, row in self.row_of.items():
                # Earlier names have larger ranks, because the maximum is chosen.
                self.ranks[row] = SPACE - self.order.number(name)

    def report(self, row: int, error: Exception) -> None:
        """Report an exception about the node of this row."""
        record = self.records[row]
        if record is not None:
            self.on_error(record.name, error)

    def _occupy(self, record: NodeInfo) -> int:
        # Rows are reused: otherwise arrays would grow with every node that ever existed.
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
        self.devices.write(row, None)
        self.zones.forget(row)
        self.amounts.forget(row)
        self._vacant.append(row)
        # Stale and in the journal, so that readers process the vacancy.
        self._stale.add(row)
        self.journal.add(row, len(self.records))

    def _grow(self) -> None:
        # Doubled, so that the cost of growing is a constant share of all writes.
        size = 2 * len(self.kinds)
        self.kinds, self.ranks = longer(self.kinds, size), longer(self.ranks, size)
        self.numbers.grow(size)
        self.amounts.grow(size)
        self.labels.grow(size)
        self.images.grow(size)
        self.devices.grow(size)
        self.pods.grow(size)

    def _nodes(self) -> Iterator[tuple[int, Node]]:
        """Yield every row that has a node, with the node."""
        for row, record in enumerate(self.records):
            if record is not None and record.node is not None:
                yield row, record.node

    def _refresh(self, row: int) -> None:
        record = self.records[row]
        if record is None or record.node is None:
            self.amounts.refuse(row)
            return
        node, written = record.node, self._objects[row]
        # By identity: informers return the same objects until they change.
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
        # Pods change whether whole cores are proved, so that this is checked on every refresh.
        if kind.config is not None:
            proved = record.admitted_counts(), record.history.evidence.keeps_cores
            if proved != self._proved.get(row):
                self._set_kind(row, kind.with_pods(record))
                self._proved[row] = proved
        takes_pods = not isinstance(record.inventory, Rejection) and not node.problem and record.barred() is None
        self.amounts.write(row, record.booked, takes_pods=takes_pods)
        self.zones.write(row, record)
        self.devices.write(row, record)

    def _set_kind(self, row: int, kind: NodeClass) -> None:
        """Set the class of a row. The number of a class without rows is reused."""
        former = int(self.kinds[row])
        number = self._kind_numbers.get(kind.key)
        if number is None:
            number = self._number_for(kind)
        if number == former:
            # The class changes rarely, while rows are written often.
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
        # Incremented for a new number too, because readers' arrays are one element short then.
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
