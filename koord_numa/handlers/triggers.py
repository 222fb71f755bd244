"""Kopf's handlers: the watched resources, the call for every event, and Kopf's settings."""

# ruff: noqa: ARG002  (signatures of Kopf's storages)
from collections.abc import Iterator, Sequence
from typing import Any, Final

import kopf

from koord_numa.ports import DELETED
from koord_numa.settings import PodSource
from koord_numa.wire import names

FIRST_PAUSES: Final = (0.5, 1.0, 1.0, 2.0, 2.0, 3.0, 5.0)
LAST_PAUSE: Final = 10.0
"""Seconds between retries of a request that fails with 403, 429 or 5xx."""

IDLE: Final = 0.5
"""Seconds after which Kopf ends the task of an idle object.

With the default of 5 s a long list keeps a task for every object.
"""

WAITING_IDLE: Final = 15.0
"""Idle timeout in seconds of a waiting pod while there are few of them (``FEW_WAITING``).

The next event of the pod is its bind. Ending its task and starting a new task would cost 40 us.
"""

FEW_WAITING: Final = 5_000
"""Maximum number of waiting pods for ``WAITING_IDLE``. The tasks of as many pods use about 60 MB."""

TOPOLOGY_IDLE: Final = 75.0
"""Idle timeout in seconds of a topology. A running task saves a fifth of the cost of an update.

Exporters publish once a minute, and a cluster has a topology per node, so there is at most one task per node.
"""

PAGE: Final = 500


class EndlessPauses:
    """Pauses between retries that never end.

    When they end, Kopf stops the whole operator. Outages and missing permissions do not justify that: the engine uses
    its known state, reports the problem, and continues afterwards.
    """

    def __iter__(self) -> Iterator[float]:
        yield from FIRST_PAUSES
        while True:
            yield LAST_PAUSE


def configure(settings: kopf.OperatorSettings, scheduler_names: Sequence[str]) -> None:
    """Apply the settings of an operator before it starts to watch."""
    settings.persistence.diffbase_storage = NoDiffs()
    settings.persistence.progress_storage = NoProgress()
    settings.posting.enabled = False  # the scheduler records its own aggregated events, not Kopf's log lines
    settings.peering.standalone = (
        True  # election uses a separate Lease: Kopf's peering pauses all replicas of equal priority
    )
    settings.queueing.idle_timeout = IDLE
    settings.networking.error_backoffs = EndlessPauses()
    settings.watching.chunk_size = PAGE
    settings.watching.field_selectors["v1", "pods"] = waiting_pods(scheduler_names)


def waiting_pods(scheduler_names: Sequence[str]) -> str:
    """Return the field selector of pods that wait for one of the schedulers.

    A field selector has no set operator. With several names it selects all pods without a node, and the dispatcher
    filters them.
    """
    wanted = ["spec.nodeName=", "status.phase!=Succeeded", "status.phase!=Failed"]
    if len(scheduler_names) == 1:
        wanted.append(f"spec.schedulerName={scheduler_names[0]}")
    # Sorted, because Kopf compares selectors as text.
    return ",".join(sorted(wanted))


_NOTHING: Final = kopf.BodyEssence()


class NoDiffs(kopf.DiffBaseStorage):
    """A storage without last-seen state."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        """Return an empty essence: Kopf needs no state of objects."""
        return _NOTHING

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return the essence of ``build``, so that Kopf finds no differences."""
        return _NOTHING

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Store nothing."""


class NoProgress(kopf.ProgressStorage):
    """A storage without progress of handlers, which only pass on events."""

    def fetch(self, *, key: str, body: kopf.Body) -> kopf.ProgressRecord | None:
        """Return ``None``: nothing is stored."""
        return None

    def store(self, *, key: str, record: kopf.ProgressRecord, body: kopf.Body, patch: kopf.Patch) -> None:
        """Store nothing."""

    def purge(self, *, key: str, body: kopf.Body, patch: kopf.Patch) -> None:
        """Remove nothing, because nothing is stored."""

    def touch(self, *, body: kopf.Body, patch: kopf.Patch, value: Any) -> None:
        """Write nothing, because nothing is stored."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Return the essence unchanged: nothing is stored in it."""
        return essence


WITHOUT_PODS: Final = kopf.OperatorRegistry()
"""The registry for ``podSource: Informer``."""

WITH_PODS: Final = kopf.get_default_registry()
"""The default registry, which ``kopf run`` uses."""

REGISTRIES: Final = (WITH_PODS, WITHOUT_PODS)


def registry(source: PodSource) -> kopf.OperatorRegistry:
    """Return the registry of handlers for a pod source."""
    return WITHOUT_PODS if source is PodSource.INFORMER else WITH_PODS


def hand_over_pod(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> bool:
    """Pass on a pod. The server selects pods without a node, so a pod that gets a node arrives as deleted."""
    memo.dispatcher.waiting_pod(event)
    goes_on = event["type"] != DELETED and len(memo.dispatcher.stores.waiting_pods) <= FEW_WAITING
    memo.queueing.idle_timeout = WAITING_IDLE if goes_on else IDLE
    return False


def hand_over_topology(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> bool:
    """Pass on a NodeResourceTopology in the version that the cluster prefers."""
    memo.dispatcher.topology(event)
    memo.queueing.idle_timeout = TOPOLOGY_IDLE
    return False


@kopf.on.event("v1", "pods", when=hand_over_pod)
async def waiting_pod(**_: Any) -> None:
    """Satisfy Kopf, which needs a handler. The ``when`` filter has already passed the event to the engine."""


@kopf.on.event(names.TOPOLOGY_GROUP, names.TOPOLOGY_PLURAL, when=hand_over_topology)
@kopf.on.event(names.TOPOLOGY_GROUP, names.TOPOLOGY_PLURAL, registry=WITHOUT_PODS, when=hand_over_topology)
async def topology(**_: Any) -> None:
    """Satisfy Kopf, which needs a handler. The ``when`` filter has already passed the event to the engine."""


@kopf.on.event(names.SCHEDULING_GROUP, names.REBIND_PLURAL)
@kopf.on.event(names.SCHEDULING_GROUP, names.REBIND_PLURAL, registry=WITHOUT_PODS)
async def rebind(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Pass on a RebindResource: a request to repack the pods of a node, or to report the result without doing it."""
    memo.dispatcher.rebind(event)
    memo.queueing.idle_timeout = IDLE
