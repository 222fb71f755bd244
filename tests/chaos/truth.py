"""Expected state of a new scheduler, computed from the API objects alone, and the admissions that the simulated nodes recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import replace
from koord_numa.engine import Dependencies, Scheduler
from koord_numa.engine.object_events import FAILED
from koord_numa.sandbox.apiserver import DirectStore
from koord_numa.sandbox.machines import Fleet
from koord_numa.sandbox.machines.simulated_node import TOPOLOGIES
from koord_numa.settings import Settings
from koord_numa.wire.nodes import parse_node
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.topologies import parse_topology
from tests.e2e.world import JsonObject

Ledgers = dict[str, dict[str, Holding]]

REFUSED_AS_TOLD = "TopologyAffinityError"
"""The reason of refusals that a kubelet was ordered to give."""


def broken(rack: Fleet, nodes_of: Mapping[str, set[str]]) -> list[str]:
    """
    Everything that may never happen, at no moment: a broken promise, anything held twice, a refusal that was not ordered, a pod that was
    on two nodes (``nodes_of`` has by uid every node that a pod was seen on).
    """
    untold = [refusal for refusal in rack.refusals if (refusal.reason, refusal.message) != (REFUSED_AS_TOLD, "as told")]
    moved = [f"{uid} was on {sorted(nodes)}" for uid, nodes in nodes_of.items() if len(nodes) > 1]
    return [*map(str, rack.double_holds()), *map(str, untold), *moved]


@dataclass(frozen=True, slots=True)
class Objects:
    """The API objects of one moment."""

    nodes: Sequence[JsonObject]
    topologies: Sequence[JsonObject]
    pods: Sequence[JsonObject]

    @classmethod
    def of(cls, store: DirectStore) -> Self:
        """As they are now."""
        return cls(store.list("nodes"), store.list(TOPOLOGIES), store.list("pods"))


def rebuilt(objects: Objects, settings: Settings) -> Scheduler:
    """An engine that makes no request and has seen every object once."""
    silent: Any = SimpleNamespace(fresh=lambda: False, event=lambda *_, **__: None, node_event=lambda *_, **__: None)
    engine = Scheduler(settings, Dependencies(silent, silent, silent, lambda *_: {}))
    for raw in objects.nodes:
        engine.handlers.nodes.observe(None, parse_node(raw))
    for raw in objects.topologies:
        engine.handlers.topologies.observe(None, parse_topology(raw))
    for raw in objects.pods:
        if raw["spec"].get("nodeName"):
            engine.handlers.bound_pods.observe(None, parse_pod(raw))
    return engine


def ledgers(engine: Scheduler) -> Ledgers:
    """Return the holdings on each node according to the engine."""
    return {name: dict(record.ledger.holdings) for name, record in engine.cache.nodes.items() if record.pods}


def unbalanced(engine: Scheduler) -> list[str]:
    """Nodes whose running totals are not the sums of what their pods hold."""
    records = engine.cache.nodes.values()
    return [f"{record.name}: wrong totals" for record in records if record.ledger != Ledger.of(record.ledger)]


def differences(believed: Ledgers, true: Ledgers) -> list[str]:
    """
    Return a line per difference between a ledger and the objects.

    No object has the place that a kubelet chose. The scheduler that placed the pod may remember its assumption, others cannot know.
    """
    found = []
    for name in sorted({*believed, *true}):
        here, there = believed.get(name, {}), true.get(name, {})
        for uid in sorted({*here, *there}):
            ours, theirs = here.get(uid), there.get(uid)
            if ours and theirs and not theirs.numa:
                ours = replace(ours, numa=())
            if ours != theirs:
                found.append(f"{name}: believed {ours}, true {theirs}")
    return found


def silent(store: DirectStore) -> list[str]:
    """Pods that wait for the scheduler and have no event or no condition that says why, a line each."""
    told = {event["regarding"]["uid"] for event in store.list("events.events.k8s.io") if event["reason"] == FAILED}
    found = []
    for pod in store.list("pods", fields="spec.nodeName="):
        metadata, spec = pod["metadata"], pod["spec"]
        if metadata.get("deletionTimestamp") or spec.get("schedulingGates"):
            continue
        conditions = {each["type"] for each in pod.get("status", {}).get("conditions", ()) if each.get("message")}
        found += [f"{metadata['name']} waits without an event"] if metadata["uid"] not in told else []
        found += [f"{metadata['name']} waits without a condition"] if "PodScheduled" not in conditions else []
    return found


def placeable(engine: Scheduler, objects: Objects) -> dict[str, str]:
    """Names of waiting pods that would fit somewhere now, each with the node that it would get."""
    waiting = [parse_pod(raw) for raw in objects.pods if not raw["spec"].get("nodeName")]
    return {pod.key.name: node for pod in waiting if (node := _node_of(engine, pod))}


def _node_of(engine: Scheduler, pod: Pod) -> str:
    request_class = engine.classes.of(pod)
    found = None if request_class is None else engine.handle.selector.decide(request_class)
    return found.node if isinstance(found, Placement) else ""
