"""Overview of the cluster: one entry per node with the free amounts of its NUMA nodes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.resources import CPU, MEMORY, MILLI, PODS, is_hugepages
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.core.state.numa_free import NumaUsage, largest_aligned, largest_with_devices, node_free, rooms
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.device_moves import DeviceMove
from koord_numa.engine.object_events import unread_of
from koord_numa.view.documents import Document, document
from koord_numa.view.text import natural, short_amounts


def cluster_document(
    entries: Iterable[Document], waiting: int, now: str, moves: Iterable[DeviceMove] = (), more: int = 0
) -> Document:
    """
    Return node entries, sorted by name, their sums, and moves that gather devices.

    ``now`` is the current time in RFC 3339. ``more`` is the number of nodes that are not listed and not in the sums.
    """
    nodes = sorted(entries, key=lambda entry: natural(entry["name"]))
    return document(
        "ClusterView",
        generatedAt=now,
        summary=summary(nodes, waiting),
        nodes=nodes,
        more=more,
        moves=[move_entry(move) for move in moves],
    )


def move_entry(move: DeviceMove) -> Document:
    """Return the entry of one move that gathers free devices."""
    return {
        "pod": str(move.pod.key),
        "node": move.node,
        "target": move.target,
        "resource": move.resource,
        "frees": move.freed,
        "text": move.text,
    }


def summary(nodes: Iterable[Document], waiting: int) -> Document:
    """Return counts and sums over node entries. ``largest`` is the largest aligned request that fits on any node."""
    totals: Counter[str] = Counter()
    best: tuple[float, str] = (0.0, "")
    for node in nodes:
        totals["nodes"] += 1
        totals["numaNodes"] += len(node["numa"])
        totals["cpus"] += node["cpus"]
        totals["freeCPUs"] += node["freeCPUs"]
        if node["state"] == "ok":
            best = max(best, (max((numa["fits"] for numa in node["numa"]), default=0), node["largest"]))
    counts = {name: totals[name] for name in ("nodes", "numaNodes", "cpus", "freeCPUs")}
    return {**counts, "largest": best[1], "waiting": waiting}


def node_entry(info: NodeInfo) -> Document | None:
    """Return the entry of a node, or None without a Node object."""
    seen = info.candidate()
    if seen is None:
        return None
    owner, policy, scope = rule_of(seen)
    state, why = state_of(info, seen)
    found = rooms(seen)
    largest = largest_aligned(seen, found)
    return {
        "name": info.name,
        "labels": dict(seen.node.labels),
        "cpusOf": owner,
        "policy": policy,
        "scope": scope,
        "state": state,
        "why": why,
        "status": (status := status_text(info, seen)),
        "trust": status,  # its name before; until 0.2
        "cpus": sum(usage.total.get(CPU, 0) for usage in found) / MILLI,
        "freeCPUs": node_free(seen, CPU, found) / MILLI,
        "numa": [*_numa_entries(found, largest.get(CPU, 0))],
        "largest": " or ".join(filter(None, map(largest_text, (largest, largest_with_devices(seen, found))))),
        "pods": len(seen.ledger),
        "held": short_amounts(seen.ledger.amounts),
        "topologyVersion": "" if info.topology is None else info.topology.resource_version,
    }


def largest_cpus(info: NodeInfo) -> int:
    """Return the CPUs of the largest aligned request that fits on the node; 0 if its state is not ``ok``."""
    seen = info.candidate()
    if seen is None or state_of(info, seen)[0] != "ok":
        return 0
    return largest_aligned(seen).get(CPU, 0) // MILLI


def free_cpus(info: NodeInfo) -> int:
    """Return the free CPUs of the whole node: an upper bound of ``largest_cpus``."""
    return max(0, info.allocatable.get(CPU, 0) - info.ledger.amounts.get(CPU, 0)) // MILLI


def rule_of(seen: NodeSnapshot) -> tuple[str, str, str]:
    """Return the owner of the CPUs (``scheduler``, ``kubelet``, ``none``), the effective policies, and their scope."""
    offer = seen.offer
    if isinstance(offer, KubeletView):
        config = offer.state.node.config
        return "kubelet", str(config.topology_policy or "unknown"), str(config.topology_scope)
    if isinstance(offer, Inventory) and (offer.zones or offer.machine):
        return "scheduler", f"{offer.policy} {offer.bind}".strip(), "pod"
    return "none", "", ""


def state_of(info: NodeInfo, seen: NodeSnapshot) -> tuple[str, str]:
    """Return the state of the node for NUMA-aligned pods as a keyword for filters, and the reason as text."""
    if seen.node.unschedulable and closed_by(seen) is None:
        return "cordoned", "the node is cordoned"
    return status_in(info, seen)


def status_in(info: NodeInfo, seen: NodeSnapshot) -> tuple[str, str]:
    """Return the state as in ``state_of``, without regard to a cordon."""
    closed = closed_by(seen)
    if closed is not None:
        words = {Reason.LOCKED: "rebind", Reason.UNTRUSTED: "conflict"}
        return words.get(closed.reason, "closed"), closed.detail or closed.message
    gap = seen.offer.gap if isinstance(seen.offer, Inventory) else ""
    if info.topology is None:
        return "no-topology", gap or "no NodeResourceTopology is published"
    if isinstance(seen.offer, KubeletView) and (seen.offer.problem or not seen.offer.groups_known):
        # A misspelled attribute may be the cause.
        return "uncertain", "; ".join((seen.offer.problem or "memory in use is unexplained", *unread_of(info)))
    if isinstance(seen.offer, KubeletView) and seen.offer.overlooked:
        return "uncertain", seen.offer.overlooked.text
    if info.topology.problem:
        return "malformed", info.topology.problem
    return ("uncertain", gap) if gap else ("ok", "; ".join(unread_of(info)))


def status_text(info: NodeInfo, seen: NodeSnapshot) -> str:
    """Return ``ok``, or the reason why figures of the node are unreliable or why it accepts no pods."""
    state, why = status_in(info, seen)
    return why or state


def closed_by(seen: NodeSnapshot) -> Rejection | None:
    """Return the reason why the node accepts no pods, or None."""
    return seen.barred or (seen.offer if isinstance(seen.offer, Rejection) else None)


def largest_text(amounts: Mapping[str, int]) -> str:
    """Return CPUs, memory and devices as ``20 CPU 80Gi 1 gpu``, or an empty string for no amounts."""
    shown = {name: amount for name, amount in amounts.items() if name in (CPU, MEMORY) or "/" in name}
    return short_amounts(shown) if any(shown.values()) else ""


def numa_amounts(usage: NumaUsage) -> Document:
    """
    Return the amounts of one NUMA node: CPUs as decimals, memory in bytes, devices and huge pages by resource name.
    """
    others = sorted(
        name for name, amount in usage.total.items() if amount and name not in (CPU, MEMORY, PODS) and _countable(name)
    )
    return {
        "id": usage.numa,
        "cpus": usage.total.get(CPU, 0) / MILLI,
        "free": usage.free.get(CPU, 0) / MILLI,
        "freeAtLeast": usage.least.get(CPU, 0) / MILLI,
        "memory": usage.total.get(MEMORY, 0),
        "freeMemory": max(0, usage.free.get(MEMORY, 0)),
        "freeMemoryAtLeast": usage.least.get(MEMORY, 0),
        "devices": {
            name: {
                "total": usage.total[name],
                "free": max(0, usage.free.get(name, 0)),
                "freeAtLeast": usage.least.get(name, 0),
            }
            for name in others
        },
    }


def _countable(name: str) -> bool:
    return "/" in name or is_hugepages(name)


def _numa_entries(found: Iterable[NumaUsage], largest: int) -> Iterator[dict[str, Any]]:
    """
    Yield an entry per NUMA node.

    ``fits`` is the maximum number of CPUs that one aligned pod could get there, limited by the free amounts of the
    node.
    """
    for usage in found:
        amounts = numa_amounts(usage)
        yield {**amounts, "fits": min(int(amounts["free"]), largest // MILLI)}
