"""
The numbers of all nodes in NumPy columns, a row a node, so that thousands of nodes are looked at in one operation.

Rows are brought up to date just before they are read. Columns repeat what the records say; they are never the truth themselves.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final

import numpy as np

from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.ranking.columns.amount_table import AmountTable
from koord_numa.engine.ranking.columns.image_columns import ImageColumns
from koord_numa.engine.ranking.columns.journal import Journal
from koord_numa.engine.ranking.columns.label_columns import LabelColumns
from koord_numa.engine.ranking.columns.name_order import SPACE, NameOrder
from koord_numa.engine.ranking.columns.node_class import NodeClass
from koord_numa.engine.ranking.columns.node_numbers import Ints, NodeNumbers, longer
from koord_numa.engine.ranking.columns.numa_table import NumaTable
from koord_numa.engine.ranking.columns.pod_counts import PodCounts

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
