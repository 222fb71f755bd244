"""
Debug dumps of one node or one pod as plain values. Read-only.

As Koordinator's scheduler service, which dumps a node's allocations at ``/nodes/NAME``.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from koord_numa.core.kubelet import KubeletView, known_of
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.state.inventory import Inventory, NodeSnapshot
from koord_numa.core.state.ledger import Holding
from koord_numa.core.state.numa_free import largest_aligned, rooms
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.scheduler import Scheduler
from koord_numa.wire import quantities

Dump: TypeAlias = dict[str, Any]
"""A JSON-compatible dump. CPUs are CPU lists (``0-3,8``), amounts are quantities (``1500m``, ``16Gi``)."""


def node_dump(engine: Scheduler, name: str) -> Dump | None:
    """Return the ledger and the free amounts of a node, or None for an unknown node."""
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
    Return the placement of a pod, or the reason why it waits.

    None for a pod that is neither pending here nor on a node.

    ``holder`` returns the leader, for a replica that is not the leader, or an empty string if there is no known leader.
    """
    found = find_pod(engine, namespace, name)
    if found is None:
        return None
    pod, record = found
    if record is None:
        return _waiting(engine, pod, holder)
    return _holding(engine, record, record.ledger.holdings[pod.key.uid]) | {"node": record.name}


def find_pod(engine: Scheduler, namespace: str, name: str) -> tuple[Pod, NodeInfo | None] | None:
    """Return a pod that waits for this scheduler, or a pod on a node together with that node."""
    for pod in engine.waiting():
        if (pod.key.namespace, pod.key.name) == (namespace, name):
            return pod, None
    for record in engine.cache.nodes.values():
        for pod in record.pods.values():
            if (pod.key.namespace, pod.key.name) == (namespace, name):
                return pod, record
    return None


def waited_seconds(engine: Scheduler, uid: str) -> float:
    """Return the seconds since a pod was first seen without a node, or 0 for a pod that does not wait."""
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
    """
    Return the last decision. A replica that is not the leader makes no decisions, and its earlier ones may be outdated.
    """
    # The verdicts of a standby date from its last leadership.
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
    """Return the known state of a kubelet that chooses CPUs, and the bounds of the free amounts of each NUMA node."""
    known = known_of(view)
    return {
        "states": known.states,
        "evidence": list(known.evidence),
        "free": [
            {"numa": one.numa, "atLeast": quantities(one.lower), "atMost": quantities(one.upper)} for one in known.free
        ],
    }


def _free_cpus(record: NodeInfo) -> str | None:
    """Return the free CPU ids of a node where the scheduler chooses CPUs, otherwise None."""
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
