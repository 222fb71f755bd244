"""
What Kopf's events and the resyncs beside them pass through on their way to the event handlers: parsers and stores, one a kind, and
how Kopf reads topologies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp.client_middlewares import ClientMiddlewareType

from koord_numa.app.contained_parsing import ContainedParser, own_name
from koord_numa.cluster.watch.batched_reading import in_batches
from koord_numa.cluster.watch.resync_store import ResyncStore
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.rebind_request import RebindRequest
from koord_numa.core.objects.request import Pod
from koord_numa.engine.object_handlers import ContainedHandler
from koord_numa.engine.rebind.controller import RebindController
from koord_numa.engine.scheduler import Scheduler
from koord_numa.handlers.dispatch import known_version, meta
from koord_numa.wire.names import TOPOLOGY_PLURAL
from koord_numa.wire.node.topologies import parse_topology
from koord_numa.wire.pod.pods import parse_pod
from koord_numa.wire.rebinds import parse_rebind

TOPOLOGY_PAUSE: Final = 0.4
"""
Seconds in which updates of topologies are gathered. Exporters publish once in 10 to 60 s what they have seen some time before, so that
nothing waits for an update, and one of several costs half of one that comes alone.
"""

POD_PAUSE: Final = 0.02
"""
The same of pods, waiting or not. One that comes alone is taken in at once; of those that come in a crowd each takes half of the time when
they are read, decided on and sent one behind the other.
"""


def topologies_in_batches(scheduler: Scheduler) -> ClientMiddlewareType:
    """For Kopf's session: watches of topologies are read in batches. Pods are handed on as they arrive, and binds wait for no batch."""
    return in_batches(TOPOLOGY_PLURAL, TOPOLOGY_PAUSE, lambda: bool(scheduler.cache.assumed))


@dataclass(frozen=True, slots=True)
class KopfStores:
    """What Kopf reports, by kind, each in front of its event handler."""

    waiting_pods: ResyncStore[Pod]
    topologies: ResyncStore[NodeResourceTopology]
    rebinds: ResyncStore[RebindRequest]


@dataclass(frozen=True, slots=True)
class KopfParsers:
    """``handlers.dispatch.Parsers``, the same for Kopf's events and for resyncs."""

    waiting_pod: ContainedParser[Pod]
    topology: ContainedParser[NodeResourceTopology]
    rebind: ContainedParser[RebindRequest]


def kopf_parsers(scheduler: Scheduler, stores: KopfStores) -> KopfParsers:
    """Parsers that leave out pods of other schedulers, and reuse what was parsed from the same version."""
    names = scheduler.settings.scheduler_names

    def waiting_pod(raw: Mapping[str, Any]) -> Pod | None:
        # Before parsing: with several scheduler names the server selects pods of all schedulers.
        if (raw.get("spec") or {}).get("schedulerName") not in names:
            return None
        # Kopf repeats objects after each lost connection; the version tells that nothing is new.
        return known_version(stores.waiting_pods, meta(raw, "uid"), raw) or parse_pod(raw)

    def topology(raw: Mapping[str, Any]) -> NodeResourceTopology:
        return known_version(stores.topologies, meta(raw, "name"), raw) or parse_topology(raw)

    return KopfParsers(
        ContainedParser("pod", waiting_pod, scheduler),
        ContainedParser("topology", topology, scheduler, own_name),
        ContainedParser("rebind", parse_rebind, scheduler),
    )


def kopf_stores(scheduler: Scheduler, rebinds: RebindController) -> KopfStores:
    """Stores in front of this scheduler and this controller of rebinds."""
    return KopfStores(
        ResyncStore(scheduler.handlers.pending_pods, lambda pod: pod.key.uid),
        ResyncStore(scheduler.handlers.topologies, lambda topology: topology.node),
        ResyncStore(ContainedHandler("rebind", rebinds, scheduler.handle.quarantine), lambda rebind: rebind.uid),
    )
