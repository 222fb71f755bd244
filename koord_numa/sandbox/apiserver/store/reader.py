"""Lists: selection, and pages that are consistent with the first page."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from koord_numa.sandbox.apiserver.errors import bad_request, expired
from koord_numa.sandbox.apiserver.objects.documents import dumps, loads
from koord_numa.sandbox.apiserver.objects.kinds import Kind
from koord_numa.sandbox.apiserver.rules.selectors import Selection
from koord_numa.sandbox.apiserver.store.backend import Backend
from koord_numa.sandbox.apiserver.store.storage import Record

_SNAPSHOTS: Final = 64
_EXPIRED: Final = (
    "The provided continue parameter is too old to display a consistent list result. "
    "You can start a new list without the continue parameter."
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list: its objects, the revision of the list, and the continue token.

    ``remaining`` is 0 where it is not counted.
    """

    records: Sequence[Record]
    revision: int
    token: str = ""
    remaining: int = 0


class Reader:
    """Lists of a kind. Records are immutable, so a snapshot for later pages is only a list of references."""

    def __init__(self, backend: Backend) -> None:
        """Create a reader. It keeps the snapshots of the latest unfinished lists."""
        self._backend = backend
        self._snapshots: OrderedDict[int, list[Record]] = OrderedDict()
        self._issued = 0

    def select(self, kind: Kind, selection: Selection) -> list[Record]:
        """Return all selected objects by namespace and name."""
        table = self._backend.table(kind)
        records = table.in_namespace(selection.namespace) if selection.namespace else list(table)
        if not (selection.labels or selection.fields):
            return records
        return [record for record in records if selection.matches(record)]

    def first_page(self, kind: Kind, selection: Selection, limit: int) -> Page:
        """Return the first page of a list, or the whole list when ``limit`` is 0."""
        records = self.select(kind, selection)
        revision = self._backend.storage.revision
        if not limit or len(records) <= limit:
            return Page(records, revision)
        self._issued += 1
        self._snapshots[self._issued] = records
        if len(self._snapshots) > _SNAPSHOTS:
            self._snapshots.popitem(last=False)
        # kube-apiserver does not count the remaining items of a list with a selector.
        remaining = 0 if selection.labels or selection.fields else len(records) - limit
        return Page(
            records[:limit], revision, _token(self._issued, limit, revision, counted=bool(remaining)), remaining
        )

    def next_page(self, token: str, limit: int) -> Page:
        """Return the page of a continue token.

        Raises 400 for a malformed token and 410 when the snapshot is no longer kept.
        """
        try:
            number, start, revision, counted = (int(part) for part in loads(urlsafe_b64decode(token)))
        except (ValueError, TypeError) as problem:
            raise bad_request("continue key is not valid: it was not issued by this server") from problem
        records = self._snapshots.get(number)
        if records is None:
            raise expired(_EXPIRED)
        end = start + limit if limit else len(records)
        if end >= len(records):
            return Page(records[start:], revision)
        remaining = len(records) - end if counted else 0
        return Page(records[start:end], revision, _token(number, end, revision, counted=bool(counted)), remaining)

    def forget_snapshots(self) -> None:
        """Discard all snapshots after a compaction. Unfinished lists cannot be continued."""
        self._snapshots.clear()


def _token(number: int, start: int, revision: int, *, counted: bool) -> str:
    return urlsafe_b64encode(dumps([number, start, revision, int(counted)])).decode()
