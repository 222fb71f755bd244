"""
Which kinds are watched, by whom, and which of the scheduler's event handlers each feeds. A table: it starts nothing and decides nothing.

Theory. With ``podSource: Kopf``, Kopf's handler reports pods that wait, a resync checks them, and an informer watches pods with a node: a
bind is then a departure on one watch and an arrival on the other, in any order, and the scheduler copes with both. With ``Informer``,
one informer watches all pods, and a bind is a single event. Kopf watches NodeResourceTopologies and RebindResources in either case.

PriorityClasses are not watched: the API server writes their value and preemption policy into every pod on admission, and later changes
of a class do not change its pods.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from koord_numa.cluster.client import Api
from koord_numa.cluster.informer import Informer
from koord_numa.cluster.lister import ListedKind, list_first_served
from koord_numa.cluster.resources import (
    ATTACHMENTS,
    BUDGETS,
    CLAIMS,
    CSI_DRIVERS,
    CSI_NODES,
    NAMESPACES,
    NODES,
    PODS,
    REBINDS,
    STORAGE_CAPACITIES,
    STORAGE_CLASSES,
    TOPOLOGIES,
    VOLUMES,
)
from koord_numa.cluster.resync import Resync
from koord_numa.cluster.resync_store import ResyncStore
from koord_numa.cluster.schedulable_nodes import SchedulableNodes
from koord_numa.core.node import Node, NodeResourceTopology
from koord_numa.core.rebind_request import RebindRequest
from koord_numa.core.request import Pod
from koord_numa.engine.rebind.controller import RebindController
from koord_numa.engine.scheduler import Scheduler, Source
from koord_numa.handlers.dispatch import Dispatcher, Stores
from koord_numa.handlers.settings import waiting_pods
from koord_numa.settings import PodSource
from koord_numa.wire.budgets import parse_budget
from koord_numa.wire.csi import parse_attachment, parse_csi_driver, parse_csi_node, parse_storage_capacity
from koord_numa.wire.namespaces import parse_namespace
from koord_numa.wire.nodes import parse_node
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.rebinds import parse_rebind
from koord_numa.wire.volumes import parse_claim, parse_storage_class, parse_volume

T = TypeVar("T")

ALL_PODS: Final = "status.phase!=Succeeded"
"""Failed pods are wanted too: among them are those that a kubelet rejected."""

BOUND_PODS: Final = f"spec.nodeName!=,{ALL_PODS}"

NOMINATED_PODS: Final = "spec.nodeName=,status.nominatedNodeName!="
"""Pods for which nodes are being freed: hardly ever any."""


def _ignore(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Callbacks(Generic[T]):
    """``ports.EventHandler`` put together from functions."""

    replace: Callable[[Iterable[T]], None]
    observe: Callable[[str | None, T], None]
    synced: Callable[[], None] = _ignore


@dataclass(frozen=True, slots=True)
class Informers:
    """
    Nothing is decided before all ``essential`` informers and all resyncs are synced. Of ``other`` informers, only pods that need what
    they show wait for them.
    """

    essential: tuple[Informer[Any], ...]
    other: tuple[Informer[Any], ...]
    resyncs: tuple[Resync[Any], ...]

    @property
    def all(self) -> tuple[Informer[Any], ...]:
        """All informers."""
        return self.essential + self.other

    def not_synced(self) -> Iterator[str]:
        """What keeps the scheduler from knowing everything that it needs, a sentence each."""
        for informer in self.essential:
            yield from _complaint(informer.kind.name, informer.synced, informer.problem)
        for resync in self.resyncs:
            yield from _complaint(resync.name, resync.synced, resync.problem)

    def needs_relist(self) -> None:
        """Objects that Kopf watches may have vanished without an event."""
        for resync in self.resyncs:
            resync.needs_relist()


@dataclass(frozen=True, slots=True)
class KopfStores:
    """What Kopf reports, by kind, each in front of its event handler."""

    waiting_pods: ResyncStore[Pod]
    topologies: ResyncStore[NodeResourceTopology]
    rebinds: ResyncStore[RebindRequest]

    def dispatcher(self, scheduler: Scheduler) -> Dispatcher:
        """What Kopf's handlers call."""
        stores = Stores(self.waiting_pods, self.topologies, self.rebinds)
        return Dispatcher(stores, scheduler.settings.scheduler_names, scheduler.waits)


def kopf_stores(scheduler: Scheduler, rebinds: RebindController) -> KopfStores:
    """Stores in front of this scheduler and this controller of rebinds."""
    return KopfStores(
        ResyncStore(scheduler.handlers.pending_pods, lambda pod: pod.key.uid),
        ResyncStore(scheduler.handlers.topologies, lambda topology: topology.node),
        ResyncStore(Callbacks(_ignore, rebinds.observe_rebind), lambda rebind: rebind.uid),
    )


def informers_of(
    api: Api, scheduler: Scheduler, roster: SchedulableNodes, stores: KopfStores, dispatcher: Dispatcher
) -> Informers:
    """Everything that feeds this scheduler, by its ``podSource``."""
    essential = (_nodes(api, scheduler, roster), _namespaces(api, scheduler))
    other = (_budgets(api, scheduler), *_volumes(api, scheduler))
    resyncs = (_topologies(api, stores, dispatcher), _rebinds(api, stores))
    if scheduler.settings.pod_source is PodSource.INFORMER:
        return Informers((all_pods(api, scheduler), *essential), other, resyncs)
    waiting = _waiting_pods(api, stores, dispatcher)
    return Informers(
        (_bound_pods(api, scheduler), *essential), (_nominated(api, scheduler), *other), (waiting, *resyncs)
    )


def all_pods(api: Api, scheduler: Scheduler) -> Informer[Pod]:
    """Every pod, waiting or not, ours or not, through one list and watch."""
    ours = frozenset(scheduler.settings.scheduler_names)

    def parse(raw: Mapping[str, Any]) -> Pod:
        metadata = raw.get("metadata")
        if isinstance(metadata, Mapping):
            known = scheduler.known(str(metadata.get("uid")))
            if known is not None and known.resource_version == metadata.get("resourceVersion"):
                return known  # most of a new list
        return parse_pod(raw)

    def replace(pods: Iterable[Pod]) -> None:
        found = list(pods)
        scheduler.handlers.bound_pods.replace(pod for pod in found if pod.node)
        scheduler.handlers.pending_pods.replace(pod for pod in found if not pod.node and pod.scheduler in ours)
        scheduler.handlers.nominated_pods.replace(pod for pod in found if not pod.node and pod.scheduler not in ours)

    def observe(event: str | None, pod: Pod) -> None:
        if pod.node:
            scheduler.handlers.bound_pods.observe(event, pod)
        elif pod.scheduler in ours:
            scheduler.handlers.pending_pods.observe(event, pod)
        else:
            scheduler.handlers.nominated_pods.observe(event, pod)

    def synced() -> None:
        scheduler.synced(Source.BOUND)
        scheduler.synced(Source.WAITING)

    return Informer(api, ListedKind(PODS, parse, ALL_PODS), Callbacks(replace, observe, synced))


def _bound_pods(api: Api, scheduler: Scheduler) -> Informer[Pod]:
    return Informer(api, ListedKind(PODS, parse_pod, BOUND_PODS), scheduler.handlers.bound_pods)


def _nominated(api: Api, scheduler: Scheduler) -> Informer[Pod]:
    """Pods of other schedulers for which nodes are being freed."""
    not_ours = "".join(f",spec.schedulerName!={name}" for name in scheduler.settings.scheduler_names)
    kind = ListedKind(PODS, parse_pod, NOMINATED_PODS + not_ours, title="pods nominated by others")
    return Informer(api, kind, scheduler.handlers.nominated_pods)


def _nodes(api: Api, scheduler: Scheduler, roster: SchedulableNodes) -> Informer[Node]:
    def replace(nodes: Iterable[Node]) -> None:
        found = list(nodes)
        roster.replace(found)
        scheduler.handlers.nodes.replace(found)

    def observe(event: str | None, node: Node) -> None:
        roster.observe(event, node)
        scheduler.handlers.nodes.observe(event, node)

    handler = Callbacks(replace, observe, lambda: scheduler.synced(Source.NODES))
    return Informer(api, ListedKind(NODES, parse_node), handler)


def _namespaces(api: Api, scheduler: Scheduler) -> Informer[Any]:
    return Informer(api, ListedKind(NAMESPACES, parse_namespace), scheduler.handlers.namespaces)


def _budgets(api: Api, scheduler: Scheduler) -> Informer[Any]:
    return Informer(api, ListedKind(BUDGETS, parse_budget), scheduler.handlers.budgets)


def _volumes(api: Api, scheduler: Scheduler) -> tuple[Informer[Any], ...]:
    """Pods with claims wait until claims, volumes and classes are synced; what CSI drivers tell of nodes may be absent."""
    lister = scheduler.volumes
    return (
        Informer(api, ListedKind(CLAIMS, parse_claim), lister.claims),
        Informer(api, ListedKind(VOLUMES, parse_volume), lister.volumes),
        Informer(api, ListedKind(STORAGE_CLASSES, parse_storage_class), lister.classes),
        Informer(api, ListedKind(CSI_NODES, parse_csi_node), lister.csi_nodes),
        Informer(api, ListedKind(CSI_DRIVERS, parse_csi_driver), lister.drivers),
        Informer(api, ListedKind(STORAGE_CAPACITIES, parse_storage_capacity), lister.capacities),
        Informer(api, ListedKind(ATTACHMENTS, parse_attachment), lister.attachments),
    )


def _waiting_pods(api: Api, stores: KopfStores, dispatcher: Dispatcher) -> Resync[Pod]:
    kind = ListedKind(PODS, dispatcher.parse_ours, waiting_pods(dispatcher.scheduler_names))
    return Resync("waiting pods", stores.waiting_pods, lambda: list_first_served(api, (kind,)))


def _topologies(api: Api, stores: KopfStores, dispatcher: Dispatcher) -> Resync[NodeResourceTopology]:
    kinds = tuple(ListedKind(resource, dispatcher.parse_topology, optional=True) for resource in TOPOLOGIES)
    return Resync("NodeResourceTopologies", stores.topologies, lambda: list_first_served(api, kinds))


def _rebinds(api: Api, stores: KopfStores) -> Resync[RebindRequest]:
    kind = ListedKind(REBINDS, parse_rebind, optional=True)
    return Resync("RebindResources", stores.rebinds, lambda: list_first_served(api, (kind,)))


def _complaint(name: str, synced: bool, problem: str) -> Iterator[str]:
    if not synced:
        yield f"not all {name} are known yet{': ' if problem else ''}{problem}"
    elif problem:
        yield f"{name}: {problem}"
