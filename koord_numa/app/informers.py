"""
Where the engine's facts come from: which kinds are mirrored, which are checked by a census, and where each is handed over.

A table in code: it starts nothing and decides nothing. PriorityClasses are not among them: the API server writes their value and
preemption policy into every pod on admission, and later changes of a class do not change its pods.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from koord_numa.app.pod_source import PodSource, pods_beside_kopf, pods_watched_by_us, resync_of_waiting_pods
from koord_numa.cluster.client import Api
from koord_numa.cluster.informer import Informer, Sink
from koord_numa.cluster.lister import ListedKind, list_first_served
from koord_numa.cluster.resources import (
    BUDGETS,
    CLAIMS,
    NAMESPACES,
    NODES,
    REBINDS,
    STORAGE_CLASSES,
    TOPOLOGIES,
    VOLUMES,
)
from koord_numa.cluster.schedulable_nodes import SchedulableNodes
from koord_numa.core.node import Node
from koord_numa.engine.scheduler import Scheduler, Source
from koord_numa.handlers.dispatch import Dispatcher
from koord_numa.handlers.resync import Resync
from koord_numa.wire.budgets import parse_budget
from koord_numa.wire.namespaces import parse_namespace
from koord_numa.wire.nodes import parse_node
from koord_numa.wire.rebinds import parse_rebind
from koord_numa.wire.volumes import parse_claim, parse_storage_class, parse_volume


@dataclass(frozen=True, slots=True)
class Informers:
    """
    ``essential`` mirrors must be complete before anything is decided. Of ``other`` mirrors, only pods that need what they show
    wait for them. Censuses check what Kopf has reported.
    """

    essential: tuple[Informer[Any], ...]
    other: tuple[Informer[Any], ...]
    censuses: tuple[Resync[Any], ...]

    @property
    def mirrors(self) -> tuple[Informer[Any], ...]:
        """All mirrors."""
        return self.essential + self.other

    def incomplete(self) -> Iterator[str]:
        """What keeps the engine from knowing everything that it needs, a sentence each."""
        for mirror in self.essential:
            yield from _complaint(mirror.kind.name, mirror.synced, mirror.problem)
        for census in self.censuses:
            yield from _complaint(census.what, census.synced, census.problem)


def informers_of(
    api: Api, engine: Scheduler, roster: SchedulableNodes, reception: Dispatcher, watch: PodSource
) -> Informers:
    """Everything that tells this engine something; ``watch`` says who watches pods that wait."""

    def replace_nodes(nodes: list[Node]) -> None:
        roster.replace(nodes)
        engine.replace_nodes(nodes)

    def observe_node(event: str, node: Node) -> None:
        roster.observe(event, node)
        engine.observe_node(event, node)

    nodes = Informer(
        api, ListedKind(NODES, parse_node), Sink(replace_nodes, observe_node, lambda: engine.synced(Source.NODES))
    )
    namespaces = Informer(
        api,
        ListedKind(NAMESPACES, parse_namespace),
        Sink(engine.namespaces.replace, engine.namespaces.observe, lambda: engine.synced(Source.NAMESPACES)),
    )
    budgets = Informer(api, ListedKind(BUDGETS, parse_budget), Sink(engine.replace_budgets, engine.observe_budget))
    storage, censuses = _storage(api, engine), _censuses(api, engine, reception)
    if watch is PodSource.OURS:
        return Informers((pods_watched_by_us(api, engine), nodes, namespaces), (budgets, *storage), censuses)
    bound, nominated = pods_beside_kopf(api, engine)
    waiting = resync_of_waiting_pods(api, engine, reception)
    return Informers((bound, nodes, namespaces), (budgets, nominated, *storage), (waiting, *censuses))


def _storage(api: Api, engine: Scheduler) -> tuple[Informer[Any], ...]:
    """Pods with claims wait until all three kinds are known."""
    room = engine.volumes
    missing = {CLAIMS, VOLUMES, STORAGE_CLASSES}

    def known(kind: ListedKind[Any]) -> Callable[[], None]:
        def synced() -> None:
            missing.discard(kind.resource)
            if not missing:
                room.synced()

        return synced

    claims, volumes, classes = (
        ListedKind(CLAIMS, parse_claim),
        ListedKind(VOLUMES, parse_volume),
        ListedKind(STORAGE_CLASSES, parse_storage_class),
    )
    return (
        Informer(api, claims, Sink(room.replace_claims, room.observe_claim, known(claims))),
        Informer(api, volumes, Sink(room.replace_volumes, room.observe_volume, known(volumes))),
        Informer(api, classes, Sink(room.replace_classes, room.observe_class, known(classes))),
    )


def _censuses(api: Api, engine: Scheduler, reception: Dispatcher) -> tuple[Resync[Any], ...]:
    topologies = tuple(ListedKind(resource, reception.listed_topology, optional=True) for resource in TOPOLOGIES)
    rebinds = ListedKind(REBINDS, parse_rebind, optional=True)
    return (
        Resync(
            "NodeResourceTopologies",
            reception.topologies,
            lambda: list_first_served(api, topologies),
            lambda: engine.synced(Source.TOPOLOGIES),
        ),
        Resync("RebindResources", reception.rebinds, lambda: list_first_served(api, (rebinds,))),
    )


def _complaint(what: str, synced: bool, problem: str) -> Iterator[str]:
    if not synced:
        yield f"not all {what} are known yet{': ' if problem else ''}{problem}"
    elif problem:
        yield f"{what}: {problem}"
