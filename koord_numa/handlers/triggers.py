"""
The table of triggers. Every body is one line: look at this again. Importing this module fills Kopf's default registry.

Only ``on.event``: indices, daemons and change handlers leave annotations and finalizers on objects, or start in quadratic time.
That holds for our own RebindResources as well: with two replicas, each would write its own progress on them; the engine of the
leader writes their status instead. All are ``async``: Kopf runs others in threads, where they would race the engine.
"""

from typing import Any, Final

import kopf

from koord_numa.wire import names

APART_FROM_PODS: Final = kopf.OperatorRegistry()
"""The same table for a process that watches pods itself."""


def is_news(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> bool:
    """Most pods that leave the selection were bound by us: that is known already, and calling a handler costs more than asking."""
    return bool(memo.reception.is_news(event))


@kopf.on.event("v1", "pods", when=is_news)
async def pod_waits(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """The server selects pods without a node; one that gets a node arrives as deleted."""
    memo.reception.pod(event)


@kopf.on.event(names.TOPOLOGY_GROUP, names.TOPOLOGY_PLURAL)
@kopf.on.event(names.TOPOLOGY_GROUP, names.TOPOLOGY_PLURAL, registry=APART_FROM_PODS)
async def topology_changed(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Whatever version the cluster prefers; both are understood."""
    memo.reception.topology(event)


@kopf.on.event(names.SCHEDULING_GROUP, names.REBIND_PLURAL)
@kopf.on.event(names.SCHEDULING_GROUP, names.REBIND_PLURAL, registry=APART_FROM_PODS)
async def rebind_asked(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
    """Someone wants the pods of a node repacked, or wants to know how that would look."""
    memo.reception.rebind(event)
