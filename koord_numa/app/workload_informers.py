"""
Informers on the objects whose selectors tell which pods are one workload: Services and the controllers that make pods.

They are watched only where some profile has default spread constraints. Preferences wait for nothing; where a default constraint may
refuse a node (``whenUnsatisfiable: DoNotSchedule``), nothing is decided before these objects are known.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from koord_numa.app.callbacks import Callbacks
from koord_numa.app.contained_parsing import ContainedParser
from koord_numa.cluster.client import Api
from koord_numa.cluster.resources import WORKLOADS
from koord_numa.cluster.watch.informer import Informer
from koord_numa.cluster.watch.lister import ListedKind
from koord_numa.core.objects.workloads import Workload, WorkloadKind
from koord_numa.engine.object_handlers import ContainedHandler
from koord_numa.engine.scheduler import Scheduler, Source
from koord_numa.wire.workloads import parse_workload


def workload_informers(api: Api, scheduler: Scheduler) -> tuple[Informer[Any], ...]:
    """One informer a kind; none where no profile spreads pods by default."""
    if not any(profile.pod_topology_spread.constraints for profile in scheduler.settings.profiles):
        return ()
    missing = set(WorkloadKind)

    def synced(kind: WorkloadKind) -> None:
        missing.discard(kind)
        # Only all kinds together: a controller that is not known yet would leave its pods without a constraint.
        if not missing:
            scheduler.synced(Source.WORKLOADS)

    return tuple(_informer(api, scheduler, kind, partial(synced, kind)) for kind in WorkloadKind)


def _informer(api: Api, scheduler: Scheduler, kind: WorkloadKind, synced: Callable[[], None]) -> Informer[Workload]:
    def replace(workloads: Iterable[Workload]) -> None:
        scheduler.workloads.replace(kind, workloads)

    parser = ContainedParser(kind.value, partial(parse_workload, kind), scheduler)
    handler = Callbacks(replace, scheduler.workloads.observe, synced)
    contained = ContainedHandler(kind.value, handler, scheduler.handle.quarantine)
    return Informer(api, ListedKind(WORKLOADS[kind], parser), contained)
