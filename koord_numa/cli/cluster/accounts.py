"""
The accounts of nodes without a scheduler, for commands that only count.

A ``Snapshot`` gives the same accounts, but the import of the scheduler takes more CPU time than a command may take.
"""

from collections.abc import Callable
from contextlib import nullcontext
from time import monotonic

from koord_numa.cli.cluster.access import Access
from koord_numa.cli.cluster.objects import COUNTED, ClusterObjects
from koord_numa.engine.cache.cache import Cache, ListedChanges
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.view import Document
from koord_numa.view.documents import node_entry


def account_entries(access: Access) -> list[Document]:
    """Return an entry for each node, sorted by name. Raises ``click.ClickException`` with a message in one line."""
    cache = None if access.config is not None else counted(access.objects(COUNTED))
    if cache is None:
        cache = access.snapshot().scheduler.cache
    found = (node_entry(info) for _, info in sorted(cache.nodes.items()))
    return [entry for entry in found if entry is not None]


def counted(objects: ClusterObjects) -> Cache | None:
    """
    Return a cache that holds the objects, with the default settings.

    ``None`` if the scheduler is needed: a pod without a node is nominated for a node, or an object cannot be processed
    and is to be quarantined.
    """
    if any(pod.nominated and not pod.node for pod in objects.pods):
        return None
    try:
        return _cache_of(objects)
    except Exception:  # noqa: BLE001 - the scheduler contains errors about single objects
        return None


def _cache_of(objects: ClusterObjects) -> Cache:
    cache = Cache(_ignore, clock=monotonic)
    for node in objects.nodes:
        cache.observe_node(None, node)
    for topology in {topology.node: topology for topology in objects.topologies}.values():
        cache.observe_topology(None, topology)
    for devices in objects.devices:
        cache.observe_devices(None, devices)
    bound = {pod.key.uid: pod for pod in objects.pods if pod.node}
    changes = ListedChanges.of(cache, bound.values(), lambda _pod: nullcontext())
    for pod in bound.values():
        cache.observe_pod(None, pod)
    changes.lose_order(cache)
    cache.judge_found_pods()
    cache.expire_unreported(patience=0)  # as in ``snapshot_of``
    ClaimLister(_nothing, _ignore, cache.set_cpus_by_claim).replace_slices(objects.resource_slices)
    return cache


def _ignore(*_: object) -> None:
    """Ignore a change. Here, no pod waits for one."""


_nothing: Callable[[], None] = _ignore
