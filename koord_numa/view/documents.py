"""
Documents of ``/api/v1`` about nodes as JSON-compatible values, shared by the page, ``-o json`` of the commands, and drawings.

CPUs are CPU lists (``0-3,8``) or lists of ids. CPU counts are whole or decimal CPUs, memory is in bytes, other
resources are counts. Within a version, fields may be added but not removed or redefined. ``docs/api.md`` describes
every field.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from koord_numa.core.claims import (
    CPU_CAPACITY,
    IN_MEMORY,
    NANO,
    Device,
    Served,
    cpu_count,
    extended_requests,
    is_cpu_device,
)
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet, members
from koord_numa.core.devices import DeviceOffer, free_devices, free_partitions
from koord_numa.core.kubelet import KubeletView
from koord_numa.core.objects.claims import Allocation, AllocationMode, DeviceId, DeviceRequirements, ResourceClaim
from koord_numa.core.objects.constraints import NodeTerm, Operator
from koord_numa.core.objects.devices import GPU
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MEMORY, MILLI, PODS, is_hugepages
from koord_numa.core.state.inventory import Inventory, NodeSnapshot
from koord_numa.core.state.ledger import Holding
from koord_numa.core.state.numa_free import NumaUsage, largest_aligned, largest_with_devices, node_free, rooms
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.engine.cache.node_info import NodeInfo, unread_of
from koord_numa.engine.claims.lister import ClaimKey, ClaimLister
from koord_numa.view import Document, document
from koord_numa.view.drawing import CacheBox, CpuHolder, Drawing, NumaBox
from koord_numa.view.text import asked, natural, policies, short_amounts

if TYPE_CHECKING:
    from koord_numa.core.rebind.plan import RebindRequest
    from koord_numa.engine.device_moves import DeviceMove


class HeldClaim(ValueObject):
    """
    A claim with devices on a node, and the pods on the node that use it.

    ``assumed`` marks an allocation that is not written yet.
    """

    claim: ResourceClaim
    allocation: Allocation
    assumed: bool
    pods: tuple[Pod, ...]
    cpus: CpuSet = EMPTY  # of dra.cpu, if known by id


def node_claims(lister: ClaimLister, info: NodeInfo) -> list[HeldClaim]:
    """Return the claims that pods of the node use or whose devices are on the node only, sorted by name."""
    users: dict[ClaimKey, list[Pod]] = {}
    for pod in info.pods.values():
        for name in (*(entry.claim for entry in pod.resource_claims), pod.extended_claim):
            users.setdefault((pod.key.namespace, name), []).append(pod)
    return [*_held(lister, info.name, users)]


def _held(lister: ClaimLister, node: str, users: Mapping[ClaimKey, Sequence[Pod]]) -> Iterator[HeldClaim]:
    for key, claim in sorted(lister.claims.items()):
        assumed = lister.assumed.get(claim.uid)
        allocation = claim.allocation if assumed is None else assumed.allocation
        if allocation is not None and (key in users or _is_tied_to(allocation.nodes, node)):
            pods = tuple(users.get(key, ()))
            yield HeldClaim(claim, allocation, assumed is not None, pods, lister.cpus_of(allocation))


def _is_tied_to(terms: tuple[NodeTerm, ...] | None, node: str) -> bool:
    """Return whether the allocation is tied to the node, as for devices of a single node."""
    fields = [field for term in terms or () for field in term.fields]
    return any((field.operator, tuple(field.values)) == (Operator.IN, (node,)) for field in fields)


def cpus_by_pod(claims: Iterable[HeldClaim]) -> dict[str, CpuSet]:
    """Return the CPUs that pods have by claim, by pod uid."""
    found: dict[str, CpuSet] = {}
    for held in claims:
        for pod in held.pods if held.cpus else ():
            found[pod.key.uid] = found.get(pod.key.uid, EMPTY) | held.cpus
    return found


class PublishedDevice(ValueObject):
    """A device that a driver publishes for a node, and its physical NUMA node, or None if it is unknown."""

    device: Device
    numa: int | None


PublishedDevices = Mapping[DeviceId, PublishedDevice]


def published_devices(lister: ClaimLister, info: NodeInfo) -> PublishedDevices:
    """Return the devices that drivers publish for the node, in the order of the slices."""
    if info.node is None:
        return {}
    roots = {} if info.topology is None else info.topology.numa_by_root
    found: Iterator[Device] = (it.device for pool in lister.pools_of(info.node) for it in pool.candidates())
    return {device.id: PublishedDevice(device, device.numa(roots)) for device in found}


def claim_entries(
    claims: Iterable[HeldClaim], devices: PublishedDevices, machine: CpuTopology | None
) -> list[Document]:
    """
    Return an entry for each claim: its devices with their NUMA nodes (null if unknown), its CPUs and their NUMA nodes.
    """
    return [_entry(held, devices, machine) for held in claims]


def _entry(held: HeldClaim, devices: PublishedDevices, machine: CpuTopology | None) -> Document:
    # If CPU ids are known, they are shown instead of the devices.
    results = [it for it in held.allocation.results if not held.cpus or not is_cpu_device(it.device)]
    places = {it.device: devices[it.device].numa for it in results if it.device in devices}
    numa = set(places.values()) - {None}
    numa.update(CpuSet(machine.numa_of(held.cpus)) if machine is not None and held.cpus <= machine.all else ())
    return {
        "claim": str(held.claim),
        "state": "assumed" if held.assumed else "allocated",
        "pods": sorted(str(pod.key) for pod in held.pods),
        "devices": [
            {
                "request": result.request,
                "driver": result.device.driver,
                "pool": result.device.pool,
                "device": result.device.device,
                "numa": places.get(result.device),
                "adminAccess": result.admin_access,
                **({"cpus": cpu_count(result)} if is_cpu_device(result.device) else {}),
            }
            for result in results
        ],
        "cpus": str(held.cpus),
        "numa": sorted(one for one in numa if one is not None),
    }


def device_entries(claims: Iterable[HeldClaim], devices: PublishedDevices) -> list[Document]:
    """
    Return an entry for each device except CPUs, with its taints and the claims that hold it.

    Admin access holds nothing.
    """
    holders: dict[DeviceId, list[str]] = {}
    for held in claims:
        for result in held.allocation.results:
            if not result.admin_access:
                holders.setdefault(result.device, []).append(str(held.claim))
    return [
        {
            "driver": key.driver,
            "pool": key.pool,
            "device": key.device,
            "numa": it.numa,
            "claims": holders.get(key, []),
            "taints": [str(taint) for taint in it.device.taints],
        }
        for key, it in devices.items()
        if not is_cpu_device(key)
    ]


def wanted_claims(lister: ClaimLister, pod: Pod) -> list[Document]:
    """Return the claims of a pod without a node: their requests, and whether they have devices."""
    found = [_wanted(lister, pod, entry.name, entry.claim) for entry in pod.resource_claims if entry.needed]
    resources = extended_requests(pod.request)
    served = lister.extended.served(resources) if lister.serves_extended else ()
    if served:
        found.append(_extended(lister, pod, served))
    return found


def _extended(lister: ClaimLister, pod: Pod, served: Served) -> Document:
    """Return the claim for extended resources, used on nodes that do not advertise them."""
    made, amounts = lister.extended.of(pod.key.uid), effective_requests(pod.request)
    asks = [f"{resource}: {amounts[resource]} of {name}" for resource, name in served]
    if made is not None:
        state = "allocated" if made.allocation is not None else "not allocated"
        return {"entry": IN_MEMORY, "claim": str(made), "state": state, "asks": asks}
    return {"entry": IN_MEMORY, "claim": "", "state": "made for nodes that do not advertise it", "asks": asks}


def _wanted(lister: ClaimLister, pod: Pod, entry: str, name: str) -> Document:
    claim = lister.claim((pod.key.namespace, name)) if name else None
    if claim is None:
        return {"entry": entry, "claim": "", "state": "not created yet", "asks": []}
    asks = [
        f"{request.result_name(index)}: {_asked(demand)}"
        for request in claim.spec.requests
        for index, demand in enumerate(request.alternatives)
    ]
    state = "allocated" if claim.allocation is not None else "not allocated"
    return {"entry": entry, "claim": str(claim), "state": state, "asks": asks}


def _asked(demand: DeviceRequirements) -> str:
    capacity = dict(demand.capacity or ())
    cpus = capacity.get(CPU_CAPACITY, 0)
    if cpus:
        return f"{cpus / NANO:g} CPU of {demand.device_class}"
    count = "all" if demand.mode == AllocationMode.ALL else str(demand.count)
    return f"{count} of {demand.device_class}"


def cluster_document(
    entries: Iterable[Document], waiting: int, now: str, moves: Iterable["DeviceMove"] = (), more: int = 0
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


def move_entry(move: "DeviceMove") -> Document:
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
    numa = [*_numa_entries(found, largest.get(CPU, 0))]
    others = dict.fromkeys((MEMORY, *(name for entry in numa for name in entry["devices"])))
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
        "free": {name: node_free(seen, name, found) for name in others},
        "numa": numa,
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
        name
        for name, amount in usage.total.items()
        if amount and name not in (CPU, MEMORY, PODS) and ("/" in name or is_hugepages(name))
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


def _numa_entries(found: Iterable[NumaUsage], largest: int) -> Iterator[dict[str, Any]]:
    """
    Yield an entry per NUMA node.

    ``fits`` is the maximum number of CPUs that one aligned pod could get there, limited by the free amounts of the
    node.
    """
    for usage in found:
        amounts = numa_amounts(usage)
        yield {**amounts, "fits": min(int(amounts["free"]), largest // MILLI)}


SHARES = {GPU: "koordinator.sh/gpu-core", "rdma": "koordinator.sh/rdma", "fpga": "koordinator.sh/fpga"}
"""Resource whose free percentage represents a device, by type."""


def devices_by_id(info: NodeInfo) -> Document | None:
    """
    Return the devices of the node's Device object, or None without one.

    ``switches`` are in the order of NUMA nodes; devices without a known switch are last, with an empty ``pcie``.
    ``freeGroups`` has the number of free groups of GPUs by size: partitions, or PCIe switches, NUMA nodes and the node.
    """
    offer = info.devices
    if offer is None:
        return None
    machine = offer.machine
    use = offer.use(info.ledger)
    known = 0
    switches = []
    for (numa, pcie), bits in machine.by_root.items():
        known |= bits
        switches.append(
            {"numa": None if numa < 0 else numa, "pcie": pcie, "devices": list(_devices(info, offer, bits))}
        )
    if rest := (1 << len(machine.devices)) - 1 & ~known:
        switches.append({"numa": None, "pcie": "", "devices": list(_devices(info, offer, rest))})
    groups = {str(size): count for size, count in free_partitions(machine, use).items()}
    return {"problem": offer.problem, "switches": switches, "freeGroups": groups}


def _devices(info: NodeInfo, offer: DeviceOffer, bits: int) -> Iterator[Document]:
    machine = offer.machine
    free = free_devices(machine, offer.use(info.ledger))
    for position in members(bits):
        device = machine.devices[position]
        share = SHARES.get(device.type, "")
        total = machine.totals[position].get(share, 0)
        yield {
            "type": device.type,
            "minor": device.minor,
            "id": offer.ids.get(device.key, ""),
            "healthy": device.healthy,
            "freePercent": 100 * free.amounts[position].get(share, 0) // total if total else 0,
            "pods": offer.holders(info.ledger, device.key),
        }


def switch_rows(found: Document) -> Iterator[list[str]]:
    """Yield a row for each PCIe switch: NUMA node, switch, and its devices with their free percentage or pods."""
    for switch in found["switches"]:
        numa = "-" if switch["numa"] is None else str(switch["numa"])
        yield [numa, switch["pcie"] or "-", ", ".join(map(_device_text, switch["devices"]))]


def _device_text(device: Document) -> str:
    name = f"{device['type']} {device['minor']}"
    if not device["healthy"]:
        return f"{name} unhealthy"
    if not device["pods"]:
        return f"{name} free"
    free = f" {device['freePercent']}% free" if device["freePercent"] else ""
    return f"{name}{free} ({', '.join(device['pods'])})"


def groups_text(found: Document) -> str:
    """Return the free groups of GPUs as text: ``free groups of GPUs: 0 of 4, 2 of 2, 5 of 1; largest: 2``; empty without GPUs."""
    groups: list[tuple[str, int]] = sorted(found["freeGroups"].items(), key=lambda item: -int(item[0]))
    text = ", ".join(f"{count} of {size}" for size, count in groups)
    largest = max((int(size) for size, count in groups if count), default=0)
    return f"free groups of GPUs: {text}; largest: {largest}" if text else ""


def node_document(
    info: NodeInfo, claims: ClaimLister, now: str, rebinds: Iterable["RebindRequest"] = ()
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


def _rebind(node: str, rebinds: Iterable["RebindRequest"]) -> Document | None:
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
    """Return, for a drawing of the node, the CPUs of claims that no pod uses."""
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
