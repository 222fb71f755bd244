"""Details of one node: the machine as a drawing, the pods with holdings, and the plan of a rebind."""

from collections.abc import Iterable, Sequence
from typing import Any

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.rebind.plan import RebindRequest
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.core.state.numa_free import rooms
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.view.documents import Document, document
from koord_numa.view.documents.claims import (
    HeldClaim,
    claim_entries,
    cpus_by_pod,
    device_entries,
    node_claims,
    published_devices,
)
from koord_numa.view.documents.cluster import node_entry, numa_amounts
from koord_numa.view.documents.devices_by_id import devices_by_id
from koord_numa.view.drawing import CacheBox, CpuHolder, Drawing, NumaBox
from koord_numa.view.text import asked, policies, short_amounts


def node_document(
    info: NodeInfo, claims: ClaimLister, now: str, rebinds: Iterable[RebindRequest] = ()
) -> Document | None:
    """Return the details of a node, or None without a Node object."""
    entry, seen = node_entry(info), info.candidate()
    if entry is None or seen is None:
        return None
    held_claims = node_claims(claims, info)
    held = with_claimed_cpus(seen, held_claims)
    devices, unused = published_devices(claims, info), unused_cpus(held_claims)
    machine = seen.offer.machine if isinstance(seen.offer, Inventory) else None
    return document(
        "NodeView",
        generatedAt=now,
        **{**entry, "pods": [_pod(info, seen, one) for one in held]},
        machine=_machine(seen, info, held, unused),
        unusedClaims=[{"claim": str(it.claim), "cpuIds": list(it.cpus)} for it in unused],
        claims=claim_entries(held_claims, devices, machine),
        devices=device_entries(held_claims, devices),
        devicesById=devices_by_id(info),
        rebind=_rebind(info.name, rebinds),
    )


def with_claimed_cpus(seen: NodeSnapshot, claims: Iterable[HeldClaim]) -> list[Holding]:
    """Return the holdings of pods including their CPUs by claim, sorted by CPUs."""
    by_claim = cpus_by_pod(claims)
    found = [replace(one, cpus=one.cpus | by_claim.get(one.pod.uid, EMPTY)) for one in seen.ledger]
    return sorted(found, key=lambda one: (one.cpus.bits or 1 << 4096, str(one.pod)))


def _rebind(node: str, rebinds: Iterable[RebindRequest]) -> Document | None:
    """Return the newest RebindResource of the node with a plan, or None. ``done`` is true after its pods have moved."""
    planned = [one for one in rebinds if one.node == node and one.plan]
    if not planned:
        return None
    newest = max(planned, key=lambda one: (one.created, one.name))
    moves = [
        {"pod": f"{move.namespace}/{move.name}", "from": _ids(move.before), "to": _ids(move.after)}
        for move in newest.plan
    ]
    done = newest.settled and not newest.dry_run
    return {"name": newest.name, "phase": str(newest.phase), "dryRun": newest.dry_run, "done": done, "plan": moves}


def _ids(cpus: str) -> list[int]:
    return list(CpuSet.parse(cpus))


def unused_cpus(claims: Iterable[HeldClaim]) -> list[HeldClaim]:
    """Return the claims that hold CPUs with known ids and that no pod of the node uses."""
    return [held for held in claims if held.cpus and not held.pods]


def claim_holders(unused: Iterable[HeldClaim]) -> list[CpuHolder]:
    """Return drawing holders for claims without a pod."""
    return [CpuHolder(f"claim {held.claim}", held.cpus) for held in unused]


def drawing_of(
    seen: NodeSnapshot,
    info: NodeInfo | None = None,
    held: Sequence[Holding] | None = None,
    unused: Iterable[HeldClaim] = (),
) -> Drawing | None:
    """
    Return the machine with its pods, in the order of ``held``, followed by the claims without a pod.

    None if CPUs are not known by id.
    """
    if not isinstance(seen.offer, Inventory) or seen.offer.machine is None:
        return None
    holdings = sorted(seen.ledger, key=lambda one: one.cpus.bits) if held is None else held
    observed = _observed(info)
    holders = [CpuHolder(str(one.pod), one.cpus, observed=observed.get(one.pod.uid)) for one in holdings]
    return Drawing(seen.offer.machine, holders + claim_holders(unused), seen.offer.reserved)


def _observed(info: NodeInfo | None) -> dict[str, CpuSet]:
    """Return the CPUs by pod uid as reported by the node agent."""
    if info is None or info.topology is None:
        return {}
    return {pod.uid: pod.cpus for pod in info.topology.kubelet_pods}


def _pod(info: NodeInfo, seen: NodeSnapshot, held: Holding) -> Document:
    uid = held.pod.uid
    there = info.pods.get(uid)
    pod = there or info.nominees[uid].pod
    machine = seen.offer.machine if isinstance(seen.offer, Inventory) else None
    numa = [numa for numa, _ in held.numa]
    if not numa and machine is not None and held.cpus:
        numa = list(CpuSet(machine.numa_of(held.cpus)))
    observed = _observed(info).get(uid)
    difference = None if info.topology is None else info.topology.differences.get(str(held.pod))
    unknown = "not known" if pod.unknown_cpus else "shared"
    chosen_by = "by the kubelet" if isinstance(seen.offer, KubeletView) else unknown
    return {
        "pod": str(held.pod),
        "uid": uid,
        "qos": str(pod.request.qos),
        "asks": asked(pod),
        "holds": short_amounts(held.amounts),
        "policies": policies(pod),
        "numa": numa,
        "cpus": (str(held.cpus) or chosen_by) if there is not None else "kept free for it",
        "cpuIds": list(held.cpus),
        "observed": str(difference.observed) if difference else None if observed is None else str(observed),
        "difference": None if difference is None else difference.why,
        "state": "nominated" if there is None else "terminating" if there.deleting else "bound",
        "inTopology": uid not in info.unpublished,
    }


def _machine(
    seen: NodeSnapshot, info: NodeInfo, held: Sequence[Holding], unused: Iterable[HeldClaim]
) -> Document | None:
    """
    Return sockets, NUMA nodes, caches, cores and CPUs.

    CPUs refer to pods by position. Claims without a pod follow the pods. If CPUs are not known by id, there is one
    socket without an id, whose NUMA nodes have no caches.
    """
    usage = {one.numa: numa_amounts(one) for one in rooms(seen)}
    drawing = drawing_of(seen, info, held, unused)
    if drawing is None:
        numa = [{**amounts, "freeCPUs": amounts["free"], "caches": []} for amounts in usage.values()]
        distances = {} if info.topology is None else info.topology.distances
        return {"sockets": [{"id": None, "numa": numa}], "distances": _distances(distances)} if numa else None
    sockets = [
        {"id": socket.id, "numa": [_numa(drawing, box, usage.get(box.id, {})) for box in socket.numa]}
        for socket in drawing.sockets()
    ]
    return {"sockets": sockets, "distances": _distances(drawing.machine.distances)}


def _numa(drawing: Drawing, box: NumaBox, amounts: Document) -> Document:
    defaults = {"memory": 0, "freeMemory": 0, "freeMemoryAtLeast": 0, "devices": {}}
    caches = [_cache(drawing, cache) for cache in box.caches]
    return {**defaults, **amounts, "id": box.id, "cpus": box.cpus, "freeCPUs": box.free, "caches": caches}


def _cache(drawing: Drawing, cache: CacheBox) -> Document:
    cores = [{"id": core.id, "cpus": [_cpu(drawing, cpu) for cpu in CpuSet(core.bits)]} for core in cache.cores]
    return {"id": cache.id, "cores": cores}


def _cpu(drawing: Drawing, cpu: int) -> Document:
    observed = drawing.observed_on(cpu)
    return {
        "id": cpu,
        "pods": drawing.holders_of(cpu),
        "reserved": cpu in drawing.reserved,
        "observedKnown": observed is not None,
        "observed": observed or [],
    }


def _distances(distances: Any) -> dict[str, int]:
    return {f"{one}-{other}": cost for (one, other), cost in sorted(distances.items())}
