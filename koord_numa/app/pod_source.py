"""
Where pods come from: one watch of our own over all of them, or Kopf for those that wait and our watch for the rest.

Theory. A bind moves a pod from waiting to bound. Seen through one watch that is a single event in its right order; seen through two it
is a departure on one and an arrival on the other, in any order. The engine copes with both. Kopf makes half a millisecond of work of
each of its events, more than the decision and the bind together, so ``koord-numa run`` leaves it the kinds that are few; under
``kopf run``, Kopf's handler reports waiting pods, and a census checks them.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from koord_numa.cluster.client import Api
from koord_numa.cluster.informer import Informer, Sink
from koord_numa.cluster.lister import ListedKind, list_first_served
from koord_numa.cluster.resources import PODS
from koord_numa.core.request import Pod
from koord_numa.engine.scheduler import Scheduler, Source
from koord_numa.handlers.dispatch import Dispatcher
from koord_numa.handlers.resync import Resync
from koord_numa.handlers.settings import waiting_pods
from koord_numa.wire.pods import parse_pod

ALL_PODS: Final = "status.phase!=Succeeded"
"""Failed pods are wanted too: among them are those that a kubelet refused."""

BOUND_PODS: Final = f"spec.nodeName!=,{ALL_PODS}"

NOMINATED_PODS: Final = "spec.nodeName=,status.nominatedNodeName!="
"""Pods for which nodes are being freed: hardly ever any."""


class PodSource(Enum):
    """Who watches pods that wait."""

    OURS = "ours"
    KOPF = "kopf"


def pods_watched_by_us(api: Api, engine: Scheduler) -> Informer[Pod]:
    """Every pod, waiting or not, ours or not, through one list and watch."""
    ours = frozenset(engine.settings.scheduler_names)

    def read(raw: Mapping[str, Any]) -> Pod:
        metadata = raw.get("metadata")
        if isinstance(metadata, Mapping):
            known = engine.known(str(metadata.get("uid")))
            if known is not None and known.resource_version == metadata.get("resourceVersion"):
                return known  # most of a new list: nothing has become of it since it was read
        return parse_pod(raw)

    def replace(pods: list[Pod]) -> None:
        engine.replace_bound(pod for pod in pods if pod.node)
        engine.replace_waiting(pod for pod in pods if not pod.node and pod.scheduler in ours)
        engine.replace_nominated(pod for pod in pods if not pod.node and pod.scheduler not in ours)

    def observe(event: str, pod: Pod) -> None:
        if pod.node:
            engine.observe_bound(event, pod)
        elif pod.scheduler in ours:
            engine.observe_waiting(event, pod)
        else:
            engine.observe_nominated(event, pod)

    def synced() -> None:
        engine.synced(Source.BOUND)
        engine.synced(Source.WAITING)

    return Informer(api, ListedKind(PODS, read, ALL_PODS), Sink(replace, observe, synced))


def pods_beside_kopf(api: Api, engine: Scheduler) -> tuple[Informer[Pod], Informer[Pod]]:
    """Pods with a node, and pods of other schedulers for which one is being freed."""
    not_ours = "".join(f",spec.schedulerName!={name}" for name in engine.settings.scheduler_names)
    bound = ListedKind(PODS, parse_pod, BOUND_PODS)
    nominated = ListedKind(PODS, parse_pod, NOMINATED_PODS + not_ours, title="pods nominated by others")
    return (
        Informer(api, bound, Sink(engine.replace_bound, engine.observe_bound, lambda: engine.synced(Source.BOUND))),
        Informer(api, nominated, Sink(engine.replace_nominated, engine.observe_nominated)),
    )


def resync_of_waiting_pods(api: Api, engine: Scheduler, reception: Dispatcher) -> Resync[Any]:
    """What Kopf has reported, checked against a list of our own."""
    waiting = ListedKind(PODS, reception.listed_pod, waiting_pods(engine.settings.scheduler_names))
    return Resync(
        "waiting pods",
        reception.waiting,
        lambda: list_first_served(api, (waiting,)),
        lambda: engine.synced(Source.WAITING),
    )
