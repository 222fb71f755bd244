"""
The table of triggers: which kinds Kopf watches, and the one call that each event leads to. Importing it fills Kopf's default registry.

Only ``on.event``: indices, daemons and change handlers leave annotations and finalizers on objects, or start in quadratic time.
That holds for RebindResources as well: with two replicas, each would write its own progress on them; the leader writes their status
instead. All handlers are ``async``: Kopf runs others in threads, where they would race the scheduler.

Pods and topologies, of which there are many, are handed over by the handler's filter (``when``), which then matches nothing: Kopf asks it
once for each event, with the same arguments, and a handler's cycle behind it (state, logger, outcome) would cost 70 us more.

Each filter says how long Kopf keeps the task of its object for the next event: Kopf looks at the setting whenever a task begins to wait.
"""

from typing import Any, Final

import kopf

from koord_numa.handlers.settings import FEW_WAITING, IDLE, TOPOLOGY_IDLE, WAITING_IDLE
from koord_numa.ports import DELETED
from koord_numa.settings import PodSource
from koord_numa.wire import names

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
