"""
Table of the informers: watched kinds, and the event handlers that they feed. It starts nothing and decides nothing.

With ``podSource: Kopf``, Kopf's handler reports waiting pods, a resync checks them, and an informer watches pods with a
node. A bind is then a removal and an addition on two watches in any order, which the scheduler handles. With
``Informer``, one informer watches all pods, and a bind is a single event. Kopf always watches NodeResourceTopologies
and RebindResources. PriorityClasses are not watched: the API server copies their value and preemption policy into pods
on admission, and later changes of a class do not affect its pods.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Generic, TypeVar

from koord_numa.app.kopf_feed import POD_PAUSE, ContainedParser, KopfParsers, KopfStores, bound_to, own_name
from koord_numa.cluster import resources
from koord_numa.cluster.client import Api
from koord_numa.cluster.informer import Informer
from koord_numa.cluster.lister import ListedKind, Resync, list_all, list_first_served
from koord_numa.cluster.resources import Resource
from koord_numa.core.claims import ResourceSlice
from koord_numa.core.objects.constraints import Workload, WorkloadKind
from koord_numa.core.objects.gangs import Dialect, PodGroup
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.rebind.plan import RebindRequest
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.event_handlers import Callbacks, ContainedHandler
from koord_numa.engine.scheduler import Scheduler, Source
from koord_numa.handlers.dispatch import meta
from koord_numa.handlers.triggers import waiting_pods
from koord_numa.ports import EventHandler, Gone
from koord_numa.settings import DeviceObjectSupport, DynamicResources, PodGroupSupport, PodSource
from koord_numa.wire import (
    KINDS,
    names_gang,
    parse_attachment,
    parse_budget,
    parse_claim,
    parse_csi_driver,
    parse_csi_node,
    parse_device_class,
    parse_devices,
    parse_namespace,
    parse_node,
    parse_pod,
    parse_pod_group,
    parse_resource_claim,
    parse_resource_slice,
    parse_storage_capacity,
    parse_storage_class,
    parse_taint_rule,
    parse_volume,
    parse_workload,
)
from koord_numa.wire.raw_json import UnreadObject

T = TypeVar("T")


def workload_informers(api: Api, scheduler: Scheduler) -> tuple[Informer[Any], ...]:
    """Return one informer per workload kind, or none if no profile has default spread constraints."""
    if not any(profile.pod_topology_spread.constraints for profile in scheduler.settings.profiles):
        return ()
    missing = set(WorkloadKind)

    def synced(kind: WorkloadKind) -> None:
        missing.discard(kind)
        # All kinds together: pods of an unknown controller would have no constraint.
        if not missing:
            scheduler.synced(Source.WORKLOADS)

    return tuple(_informer(api, scheduler, kind, partial(synced, kind)) for kind in WorkloadKind)


def _informer(api: Api, scheduler: Scheduler, kind: WorkloadKind, synced: Callable[[], None]) -> Informer[Workload]:
    def replace(workloads: Iterable[Workload]) -> None:
        scheduler.workloads.replace(kind, workloads)

    parser = ContainedParser(kind.value, partial(parse_workload, kind), scheduler)
    handler = Callbacks(replace, scheduler.workloads.observe, synced)
    contained = ContainedHandler(kind.value, handler, scheduler.handle.quarantine)
    return Informer(api, ListedKind(resources.WORKLOADS[kind], parser), contained)


class ClaimsCatchUp:
    """Relist of ResourceClaims at the start of a leadership. ``informer`` is None if claims are disabled."""

    def __init__(self, informer: Informer[Any] | None, lister: ClaimLister) -> None:
        self._informer = informer
        self._lister = lister
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start a list and delay pods with claims until it is complete."""
        if self._informer is None:
            return
        self.stop()
        self._lister.lags(may_lag=True)
        self._task = asyncio.create_task(self._relist(self._informer), name="relist of ResourceClaims")

    def stop(self) -> None:
        """Cancel the list."""
        if self._task is not None:
            self._task.cancel()

    async def _relist(self, informer: Informer[Any]) -> None:
        await informer.refresh()
        self._lister.lags(may_lag=False)


ALL_PODS: Final = "status.phase!=Succeeded"
"""Failed pods are included, because some of them are pods that a kubelet rejected."""

BOUND_PODS: Final = f"spec.nodeName!=,{ALL_PODS}"

COMPLETED_PODS: Final = "status.phase=Succeeded"

NOMINATED_PODS: Final = "spec.nodeName=,status.nominatedNodeName!="
"""Pods with a nominated node, for which preemption frees room. Rare."""


class Informers(ValueObject):
    """
    All informers and resyncs.

    No decision is made before all ``essential`` informers and all resyncs are synced. Only pods that need the objects
    of ``other`` informers wait for these.
    """

    essential: tuple[Informer[Any], ...]
    other: tuple[Informer[Any], ...]
    resyncs: tuple[Resync[Any], ...]
    claims: Informer[Any] | None = None  # the informer of ResourceClaims, one of ``other``
    topologies: "TopologyLists | None" = None

    def warnings(self) -> Iterator[str]:
        """Yield warnings about conditions that do not affect readiness."""
        if self.topologies is not None:
            yield from self.topologies.warnings()

    @property
    def all(self) -> tuple[Informer[Any], ...]:
        """All informers."""
        return self.essential + self.other

    def not_synced(self) -> Iterator[str]:
        """Yield the reasons why the scheduler is not synced, a sentence each."""
        for informer in self.essential:
            yield from _complaint(informer.kind.name, informer.synced, informer.problem)
        for resync in self.resyncs:
            yield from _complaint(resync.name, resync.synced, resync.problem)

    def needs_relist(self) -> None:
        """Request a relist of objects that Kopf watches, because events may have been missed."""
        for resync in self.resyncs:
            resync.needs_relist()


def informers_of(api: Api, scheduler: Scheduler, stores: KopfStores, parsers: KopfParsers) -> Informers:
    """Return all informers and resyncs of the scheduler, by its ``podSource``."""
    essential: tuple[Informer[Any], ...] = (
        _nodes(api, scheduler),
        _namespaces(api, scheduler),
        *_devices(api, scheduler),
    )
    claims = _resource_claims(api, scheduler)
    other = (_budgets(api, scheduler), *_volumes(api, scheduler), *claims, *_pod_groups(api, scheduler))
    of_claims = claims[0] if claims else None
    # Decisions need workloads only if a default constraint may reject a node.
    if scheduler.settings.needs_workloads:
        essential += workload_informers(api, scheduler)
    else:
        other += workload_informers(api, scheduler)
    topologies = TopologyLists(api, parsers)
    resyncs = (
        Resync("NodeResourceTopologies", stores.topologies, topologies.read),
        _rebinds(api, stores, parsers),
    )
    if scheduler.settings.pod_source is PodSource.INFORMER:
        return Informers((all_pods(api, scheduler), *essential), other, resyncs, of_claims, topologies)
    waiting = _waiting_pods(api, stores, parsers, scheduler.settings.scheduler_names)
    return Informers(
        (_bound_pods(api, scheduler), *essential),
        (_nominated(api, scheduler), *other),
        (waiting, *resyncs),
        of_claims,
        topologies,
    )


def all_pods(api: Api, scheduler: Scheduler) -> Informer[Pod]:
    """Return an informer of all pods: waiting or bound, of this and of other schedulers."""
    ours = frozenset(scheduler.settings.scheduler_names)

    def parse(raw: Mapping[str, Any]) -> Pod:
        if isinstance(raw, UnreadObject):
            identity = raw.identity
            known = scheduler.known(identity.uid)
            # Parsing a pod is the most expensive part of a relist, so pods of the same version are reused.
            if known is not None and known.resource_version == identity.resource_version:
                return known  # the common case in a relist
        return parse_pod(raw)

    def replace(pods: Iterable[Pod]) -> None:
        # A list, because three handlers iterate over the pods.
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

    parser = ContainedParser("pod", parse, scheduler, bound_to)
    kind = ListedKind(resources.PODS, parser, ALL_PODS, known=_counted(scheduler), pause=POD_PAUSE, unread=True)
    return Informer(api, kind, Callbacks(replace, observe, synced))


def _bound_pods(api: Api, scheduler: Scheduler) -> Informer[Pod]:
    parser = ContainedParser("pod", parse_pod, scheduler, bound_to)
    kind = ListedKind(resources.PODS, parser, BOUND_PODS, known=_counted(scheduler), pause=POD_PAUSE, unread=True)
    return Informer(api, kind, scheduler.handlers.bound_pods)


def _counted(scheduler: Scheduler) -> Callable[[Mapping[str, Any]], Pod | None]:
    """
    Return a lookup of cached pods by the uid of a raw pod.

    Assumed pods are excluded, because their own object may not show the bind yet.
    """

    def counted(raw: Mapping[str, Any]) -> Pod | None:
        uid = raw.identity.uid if isinstance(raw, UnreadObject) else meta(raw, "uid")
        return None if uid in scheduler.cache.assumed else scheduler.cache.pod(uid)

    return counted


def _nominated(api: Api, scheduler: Scheduler) -> Informer[Pod]:
    """Return an informer of pods of other schedulers with a nominated node."""
    # Field selectors have no "not in" operator, so there is one condition per name.
    not_ours = "".join(f",spec.schedulerName!={name}" for name in scheduler.settings.scheduler_names)
    parser = ContainedParser("pod", parse_pod, scheduler)
    kind = ListedKind(resources.PODS, parser, NOMINATED_PODS + not_ours, title="pods nominated by others")
    return Informer(api, kind, _contained("pod", scheduler.handlers.nominated_pods, scheduler))


def _nodes(api: Api, scheduler: Scheduler) -> Informer[Node]:
    parser = ContainedParser("node", parse_node, scheduler, own_name)
    return Informer(api, ListedKind(resources.NODES, parser), scheduler.handlers.nodes)


def _namespaces(api: Api, scheduler: Scheduler) -> Informer[Any]:
    return _listed(
        api, scheduler, KindToList("namespace", resources.NAMESPACES, parse_namespace), scheduler.handlers.namespaces
    )


def _devices(api: Api, scheduler: Scheduler) -> tuple[Informer[Any], ...]:
    """
    Return the informer of Device objects. A cluster without the kind has none.

    Decisions wait for it: a node whose Device object is not known would give away devices as plain amounts.
    """
    if scheduler.settings.device_objects is DeviceObjectSupport.OFF:
        return ()
    parser = ContainedParser("devices", parse_devices, scheduler, own_name)
    return (Informer(api, ListedKind(resources.DEVICES, parser, optional=True), scheduler.handlers.devices),)


def _budgets(api: Api, scheduler: Scheduler) -> Informer[Any]:
    return _listed(api, scheduler, KindToList("budget", resources.BUDGETS, parse_budget), scheduler.handlers.budgets)


def _volumes(api: Api, scheduler: Scheduler) -> tuple[Informer[Any], ...]:
    """
    Return the informers of volume kinds.

    Pods with claims wait until claims, volumes and classes are synced. The CSI kinds may be missing.
    """
    lister = scheduler.volumes
    kinds: tuple[tuple[KindToList[Any], EventHandler[Any]], ...] = (
        (KindToList("claim", resources.CLAIMS, parse_claim), lister.claims),
        (KindToList("volume", resources.VOLUMES, parse_volume), lister.volumes),
        (KindToList("storage class", resources.STORAGE_CLASSES, parse_storage_class), lister.classes),
        (KindToList("CSINode", resources.CSI_NODES, parse_csi_node), lister.csi_nodes),
        (KindToList("CSIDriver", resources.CSI_DRIVERS, parse_csi_driver), lister.drivers),
        (KindToList("capacity", resources.STORAGE_CAPACITIES, parse_storage_capacity), lister.capacities),
        (KindToList("attachment", resources.ATTACHMENTS, parse_attachment), lister.attachments),
    )
    return tuple(_listed(api, scheduler, kind, handler) for kind, handler in kinds)


def _resource_claims(api: Api, scheduler: Scheduler) -> tuple[Informer[Any], ...]:
    """
    Return the informers of DRA kinds.

    Pods with claims wait until all four kinds are synced. A cluster without these kinds has empty lists.
    """
    if scheduler.settings.dynamic_resources is DynamicResources.OFF:
        return ()
    lister = scheduler.claims
    # All kinds are required: a decision without one would miss devices, classes or taints.
    missing = {resources.RESOURCE_CLAIMS, resources.RESOURCE_SLICES, resources.DEVICE_CLASSES, resources.TAINT_RULES[0]}

    def synced(resource: Resource) -> Callable[[], None]:
        def one_more() -> None:
            missing.discard(resource)
            if not missing:
                lister.synced()

        return one_more

    claims = Callbacks(lister.replace_claims, lister.observe_claim, synced(resources.RESOURCE_CLAIMS))
    slices = Callbacks(lister.replace_slices, lister.observe_slice, synced(resources.RESOURCE_SLICES))
    classes = Callbacks(lister.replace_classes, lister.observe_class, synced(resources.DEVICE_CLASSES))
    rules = Callbacks(lister.replace_taint_rules, lister.observe_taint_rule, synced(resources.TAINT_RULES[0]))
    kinds: tuple[tuple[KindToList[Any], EventHandler[Any]], ...] = (
        (KindToList("resource claim", resources.RESOURCE_CLAIMS, parse_resource_claim, optional=True), claims),
        (KindToList("resource slice", resources.RESOURCE_SLICES, _slice, optional=True), slices),
        (KindToList("device class", resources.DEVICE_CLASSES, parse_device_class, optional=True), classes),
        (
            KindToList(
                "device taint rule",
                resources.TAINT_RULES[0],
                parse_taint_rule,
                optional=True,
                older=resources.TAINT_RULES[1:],
            ),
            rules,
        ),
    )
    return tuple(_listed(api, scheduler, kind, handler) for kind, handler in kinds)


def _pod_groups(api: Api, scheduler: Scheduler) -> tuple[Informer[Any], ...]:
    """
    Return one informer per PodGroup dialect.

    Members of an unknown PodGroup wait for it, so other decisions do not wait for these informers.
    """
    if scheduler.settings.pod_groups is PodGroupSupport.OFF:
        return ()
    return (_completed(api, scheduler), *(_pod_groups_of(api, scheduler, dialect) for dialect in Dialect))


def _completed(api: Api, scheduler: Scheduler) -> Informer[Pod]:
    """Return an informer of succeeded pods of gangs. Other pod informers exclude them, but they count as scheduled."""
    groups, ours = scheduler.groups, scheduler.settings.scheduler_names

    def parse(raw: Mapping[str, Any]) -> Pod | None:
        return parse_pod(raw) if names_gang(raw) else None

    def replace(found: Iterable[Pod]) -> None:
        groups.replace_completed([pod for pod in found if pod.scheduler in ours])
        scheduler.kick()

    def observe(event: str | None, pod: Pod) -> None:
        if pod.scheduler in ours:
            groups.observe_completed(event, pod)
            scheduler.kick()

    selector = COMPLETED_PODS + (f",spec.schedulerName={ours[0]}" if len(ours) == 1 else "")
    kind = ListedKind(
        resources.PODS, ContainedParser("pod", parse, scheduler), selector, title="completed pods", pause=POD_PAUSE
    )
    return Informer(api, kind, _contained("pod", Callbacks(replace, observe), scheduler))


def _pod_groups_of(api: Api, scheduler: Scheduler, dialect: Dialect) -> Informer[PodGroup]:
    groups, versions = scheduler.groups, resources.POD_GROUPS[dialect]

    def replace(found: Iterable[PodGroup]) -> None:
        groups.replace_groups(dialect, list(found))
        scheduler.kick()

    def observe(event: str | None, group: PodGroup) -> None:
        groups.observe_group(event, group)
        scheduler.kick()

    kind = KindToList(KINDS[dialect], versions[0], partial(parse_pod_group, dialect), optional=True, older=versions[1:])
    return _listed(api, scheduler, kind, Callbacks(replace, observe))


def _slice(raw: Mapping[str, Any]) -> ResourceSlice | None:
    return parse_resource_slice(raw).parts


class KindToList(ValueObject, Generic[T]):
    """A listed and watched kind: its name, its resources, its parser, and whether the cluster may lack it."""

    name: str
    resource: Resource
    parse: Callable[[Mapping[str, Any]], T | None]
    optional: bool = False
    older: tuple[Resource, ...] = ()


def _listed(api: Api, scheduler: Scheduler, kind: KindToList[T], handler: EventHandler[T]) -> Informer[T]:
    """Return an informer with a contained parser and handler: a broken object affects only itself."""
    parser = ContainedParser(kind.name, kind.parse, scheduler)
    listed = ListedKind(kind.resource, parser, optional=kind.optional, older=kind.older)
    return Informer(api, listed, _contained(kind.name, handler, scheduler))


def _contained(kind: str, handler: EventHandler[T], scheduler: Scheduler) -> ContainedHandler[T]:
    return ContainedHandler(kind, handler, scheduler.handle.quarantine)


def _waiting_pods(api: Api, stores: KopfStores, parsers: KopfParsers, scheduler_names: tuple[str, ...]) -> Resync[Pod]:
    kind = ListedKind(resources.PODS, parsers.waiting_pod, waiting_pods(scheduler_names))
    return Resync("waiting pods", stores.waiting_pods, lambda: list_first_served(api, (kind,)))


class TopologyLists:
    """Lists of NodeResourceTopologies in the newest version that the cluster serves, and whether it serves any."""

    def __init__(self, api: Api, parsers: KopfParsers) -> None:
        self._api = api
        self._kinds = tuple(ListedKind(resource, parsers.topology) for resource in resources.TOPOLOGIES)
        self._is_served = True

    async def read(self) -> list[NodeResourceTopology]:
        """Return all topologies. There are none where the kind is not installed. Raises ``ClusterError``."""
        for kind in self._kinds:
            try:
                found = (await list_all(self._api, kind)).objects
            except Gone:
                continue
            self._is_served = True
            return found
        self._is_served = False
        return []

    def warnings(self) -> Iterator[str]:
        """Yield a sentence where the kind is not installed."""
        if not self._is_served:
            yield (
                "the cluster has no definition of NodeResourceTopologies, so pods that need NUMA nodes or exclusive CPUs wait: "
                "install it with an exporter, or by kubectl apply -k deploy/kustomize/topology-crd"
            )


def _rebinds(api: Api, stores: KopfStores, parsers: KopfParsers) -> Resync[RebindRequest]:
    kind = ListedKind(resources.REBINDS, parsers.rebind, optional=True)
    return Resync("RebindResources", stores.rebinds, lambda: list_first_served(api, (kind,)))


def _complaint(name: str, synced: bool, problem: str) -> Iterator[str]:
    if not synced:
        yield f"not all {name} are listed yet{': ' if problem else ''}{problem}"
    elif problem:
        yield f"{name}: {problem}"
