"""Kopf's handlers: which kinds are watched, what each event calls, and Kopf's settings."""

# ruff: noqa: ARG002  (Kopf's signatures of storages)
from collections.abc import Iterator, Sequence
from typing import Any, Final

import kopf

from koord_numa.ports import DELETED
from koord_numa.settings import PodSource
from koord_numa.wire import names

FIRST_PAUSES: Final = (0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 5.0)
LAST_PAUSE: Final = 10.0
"""Seconds between tries of a request that fails with 403, 429 or 5xx."""

IDLE: Final = 0.5
"""Seconds after which Kopf ends the task of a quiet object; with its own 5 s a big list keeps a task for every object."""

WAITING_IDLE: Final = 15.0
"""
The same for a pod that waits for a node while there are few of them (``FEW_WAITING``). Its next event comes when it is bound, and to end
its task before and start another one then costs 40 us.
"""

FEW_WAITING: Final = 5_000
"""Tasks of so many pods occupy some 60 MB."""

TOPOLOGY_IDLE: Final = 75.0
"""
The same for a topology, in which a task that is still there saves a fifth of what an update costs. Exporters publish once a minute, and a
cluster has one topology a node, so that there is one task a node at most.
"""

PAGE: Final = 500


class EndlessPauses:
    """
    Pauses between retries that never run out.

    Kopf stops the whole operator when they do. An outage or a right that is missing is no reason to: the engine serves what it
    knows, says what is wrong, and goes on when it is over.
    """

    def __iter__(self) -> Iterator[float]:
        yield from FIRST_PAUSES
        while True:
            yield LAST_PAUSE


def configure(settings: kopf.OperatorSettings, scheduler_names: Sequence[str]) -> None:
    """Apply to an operator's settings before it starts to watch."""
    settings.persistence.diffbase_storage = NoDiffs()
    settings.persistence.progress_storage = NoProgress()
    settings.posting.enabled = False  # events are ours: aggregated, and not Kopf's log lines
    settings.peering.standalone = (
        True  # election is by our own Lease: Kopf's peering pauses all replicas at equal priority
    )
    settings.queueing.idle_timeout = IDLE
    settings.networking.error_backoffs = EndlessPauses()
    settings.watching.chunk_size = PAGE
    settings.watching.field_selectors["v1", "pods"] = waiting_pods(scheduler_names)


def waiting_pods(scheduler_names: Sequence[str]) -> str:
    """
    The field selector of pods that wait for one of these schedulers.

    The server knows no "one of": with several names it selects every pod without a node, and the dispatcher leaves out the others.
    """
    wanted = ["spec.nodeName=", "status.phase!=Succeeded", "status.phase!=Failed"]
    if len(scheduler_names) == 1:
        wanted.append(f"spec.schedulerName={scheduler_names[0]}")
    # Sorted, as Kopf compares selectors by their text.
    return ",".join(sorted(wanted))


_NOTHING: Final = kopf.BodyEssence()


class NoDiffs(kopf.DiffBaseStorage):
    """Remembers no last-seen state."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        """Nothing about an object is essential to Kopf."""
        return _NOTHING

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """The same as is built, so that Kopf finds no difference to describe in each event."""
        return _NOTHING

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Stores nothing."""


class NoProgress(kopf.ProgressStorage):
    """Remembers no progress of handlers: ours only hand over and are done."""

    def fetch(self, *, key: str, body: kopf.Body) -> kopf.ProgressRecord | None:
        """Nothing was stored."""
        return None

    def store(self, *, key: str, record: kopf.ProgressRecord, body: kopf.Body, patch: kopf.Patch) -> None:
        """Stores nothing."""

    def purge(self, *, key: str, body: kopf.Body, patch: kopf.Patch) -> None:
        """Nothing to purge."""

    def touch(self, *, body: kopf.Body, patch: kopf.Patch, value: Any) -> None:
        """Leaves no trace."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Nothing to clear."""
        return essence


WITHOUT_PODS: Final = kopf.OperatorRegistry()
"""The same table for ``podSource: Informer``."""

REGISTRIES: Final = (kopf.get_default_registry(), WITHOUT_PODS)


def registry(source: PodSource) -> kopf.OperatorRegistry:
    """Which of the tables Kopf serves."""
    return WITHOUT_PODS if source is PodSource.INFORMER else kopf.get_default_registry()


def hand_over_pod(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> bool:
    """The server selects pods without a node; one that gets a node arrives as deleted."""
    memo.dispatcher.waiting_pod(event)
    goes_on = event["type"] != DELETED and len(memo.dispatcher.stores.waiting_pods) <= FEW_WAITING
    memo.queueing.idle_timeout = WAITING_IDLE if goes_on else IDLE
    return False


def hand_over_topology(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> bool:
    """A NodeResourceTopology, in whatever version the cluster prefers."""
    memo.dispatcher.topology(event)
    memo.queueing.idle_timeout = TOPOLOGY_IDLE
    return False


@kopf.on.event("v1", "pods", when=hand_over_pod)
async def waiting_pod(**_: Any) -> None:
    """Handed over by the filter."""


@kopf.on.event(names.TOPOLOGY_GROUP, names.TOPOLOGY_PLURAL, when=hand_over_topology)
@kopf.on.event(names.TOPOLOGY_GROUP, names.TOPOLOGY_PLURAL, registry=WITHOUT_PODS, when=hand_over_topology)
async def topology(**_: Any) -> None:
    """Handed over by the filter."""


@kopf.on.event(names.SCHEDULING_GROUP, names.REBIND_PLURAL)
@kopf.on.event(names.SCHEDULING_GROUP, names.REBIND_PLURAL, registry=WITHOUT_PODS)
async def rebind(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """A request to repack the pods of a node, or to say how that would look."""
    memo.dispatcher.rebind(event)
    memo.queueing.idle_timeout = IDLE
