"""
What the engine knows of one node or one pod, as plain values for people who debug. It reads and changes nothing.

As Koordinator's scheduler service, which dumps a node's allocations at ``/nodes/NAME``.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from koord_numa.core.kubelet.knowledge import known_of
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.core.state.numa_free import largest_aligned, rooms
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.scheduler import Scheduler
from koord_numa.wire.pod.pod_annotations import quantities

Dump: TypeAlias = dict[str, Any]
"""Ready for JSON. CPUs are cpu lists (``0-3,8``), amounts are quantities (``1500m``, ``16Gi``)."""


def node_dump(engine: Scheduler, name: str) -> Dump | None:
    """One node's ledger and what is left of it; ``None`` for a node that nothing is known of."""
    record = engine.cache.nodes.get(name)
    if record is None:
        return None
    seen = record.candidate()
    return {
        "node": name,
        "exists": record.node is not None,
        "revision": record.revision,
        "takesNoPodsBecause": _why_closed(record, seen),
        "topology": None if record.topology is None else _topology(record.topology),
        "allocatable": quantities(record.allocatable),
        "held": quantities(record.ledger.amounts),
        "heldCPUs": str(record.ledger.cpus),
        "freeCPUs": _free_cpus(record),
        "numa": [] if seen is None else [*_numa(seen)],
        "largestAligned": {} if seen is None else quantities(largest_aligned(seen)),
        **({"kubelet": _kubelet(seen.offer)} if seen is not None and isinstance(seen.offer, KubeletView) else {}),
        "pods": [_holding(engine, record, held) for held in sorted(record.ledger, key=lambda held: str(held.pod))],
        "nominees": sorted(str(nominee.pod.key) for nominee in record.nominees.values()),
    }


def pod_dump(engine: Scheduler, namespace: str, name: str, holder: Callable[[], str] = str) -> Dump | None:
    """
    Where a pod is and with what, or why it waits; ``None`` for one that is neither ours to place nor counted anywhere.

    ``holder`` names who leads, for a replica that decides nothing itself; empty when no leader is known.
    """
    found = find_pod(engine, namespace, name)
    if found is None:
        return None
    pod, record = found
    if record is None:
        return _waiting(engine, pod, holder)
    return _holding(engine, record, record.ledger.holdings[pod.key.uid]) | {"node": record.name}


def find_pod(engine: Scheduler, namespace: str, name: str) -> tuple[Pod, NodeInfo | None] | None:
    """A pod that waits for this scheduler, or one that is counted on a node, with that node."""
    for pod in engine.waiting():
        if (pod.key.namespace, pod.key.name) == (namespace, name):
            return pod, None
    for record in engine.cache.nodes.values():
        for pod in record.pods.values():
            if (pod.key.namespace, pod.key.name) == (namespace, name):
                return pod, record
    return None


def waited_seconds(engine: Scheduler, uid: str) -> float:
    """Seconds since a pod was first seen without a node; 0 for one that does not wait."""
    pending = engine.handle.pending.get(uid)
    return 0.0 if pending is None else engine.dependencies.clock() - pending.since


def _waiting(engine: Scheduler, pod: Pod, holder: Callable[[], str]) -> Dump:
    uid = pod.key.uid
    # An assumed pod is still pending: its bind is not settled.
    pending, assumption = engine.handle.pending.get(uid), engine.cache.assumed.get(uid)
    verdict = engine.queue.verdict(pending)
    return {
        "pod": str(pod.key),
        "uid": uid,
        "priority": pod.request.priority,
        "state": "waiting" if assumption is None else "assumed",
        "node": "" if assumption is None else assumption.placement.node,
        "nominatedNode": engine.handle.nominator.node_of(pod),
        "waitedSeconds": 0.0 if pending is None else round(engine.dependencies.clock() - pending.since, 3),
        "attempts": 0 if pending is None else pending.attempts,
        "why": _why_waiting(engine, pod, holder),
        "refusedBy": {} if verdict is None else _refusals(verdict.rejections),
    }


def _why_waiting(engine: Scheduler, pod: Pod, holder: Callable[[], str]) -> str:
    """What was decided last; a replica that does not lead decides nothing, and what it decided once may be outdated."""
    # What a standby knows of verdicts is from when it led last.
    if not engine.dependencies.lease.fresh():
        return pod.problem or f"this replica is not the leader; ask {holder() or 'the leader, when there is one'}"
    return engine.explain(uid=pod.key.uid) or pod.problem


def _refusals(rejections: Mapping[str, Rejection]) -> Dump:
    return {node: {"reason": it.reason.value, "message": it.message} for node, it in sorted(rejections.items())}


def _why_closed(record: NodeInfo, seen: NodeSnapshot | None) -> str:
    if seen is None:
        return "there is no such Node"
    closed = seen.barred or (seen.offer if isinstance(seen.offer, Rejection) else None)
    if closed is not None:
        return f"{closed.message}: {closed.detail}" if closed.detail else closed.message
    return "the node is cordoned" if record.node is not None and record.node.unschedulable else ""


def _topology(topology: NodeResourceTopology) -> Dump:
    return {"version": topology.resource_version, "cpusOf": topology.owner.value, "problem": topology.problem}


def _kubelet(view: KubeletView) -> Dump:
    """What is known of the kubelet that chooses, and the bounds of what each NUMA node has free."""
    known = known_of(view)
    return {
        "states": known.states,
        "evidence": list(known.evidence),
        "free": [
            {"numa": one.numa, "atLeast": quantities(one.lower), "atMost": quantities(one.upper)} for one in known.free
        ],
    }


def _free_cpus(record: NodeInfo) -> str | None:
    """By id, where we choose them."""
    offer = record.inventory
    if not isinstance(offer, Inventory) or offer.machine is None:
        return None
    return str(offer.cpus - record.ledger.cpus)


def _numa(seen: NodeSnapshot) -> Iterator[Dump]:
    for room in rooms(seen):
        yield {"numa": room.numa, "total": quantities(room.total), "free": quantities(room.free)}


def _holding(engine: Scheduler, record: NodeInfo, held: Holding) -> Dump:
    uid = held.pod.uid
    return {
        "pod": str(held.pod),
        "uid": uid,
        "state": "assumed" if uid in engine.cache.assumed else "bound",
        "holds": quantities(held.amounts),
        "cpus": str(held.cpus),
        "numa": {str(numa): quantities(amounts) for numa, amounts in held.numa},
        "inTopology": uid not in record.unpublished,
    }
