"""Nodes as tables and CPU maps: the owner of the CPUs, free amounts per NUMA node, and holdings of pods."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from koord_numa.cli.cluster.snapshot import Snapshot
from koord_numa.cli.render import cpu_map
from koord_numa.cli.render.output import HEADINGS, Output, node_row
from koord_numa.cli.render.tables import Columns
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.explain import amounts_text
from koord_numa.core.kubelet import KubeletView, known_of
from koord_numa.core.objects.request import Pod
from koord_numa.core.resources import CPU, MEMORY
from koord_numa.core.state.inventory import Inventory, NodeSnapshot
from koord_numa.core.state.ledger import Holding
from koord_numa.core.state.numa_free import NumaUsage, rooms
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.view.documents import (
    HeldClaim,
    claim_entries,
    claim_holders,
    devices_by_id,
    groups_text,
    node_claims,
    node_entry,
    published_devices,
    switch_rows,
    unused_cpus,
    with_claimed_cpus,
)
from koord_numa.view.drawing import CpuHolder, Drawing
from koord_numa.view.text import NONE, asked, count, numa_text, policies


def node_report(seen: NodeSnapshot, snapshot: Snapshot, width: int) -> Iterator[Text]:
    """
    Yield the report of one node: its row, the amounts of its NUMA nodes, a CPU map if CPUs are known, and its pods.
    """
    info = snapshot.scheduler.cache.nodes[seen.node.name]
    if (entry := node_entry(info)) is not None:
        yield from Columns(HEADINGS, [node_row(entry, Output())]).lines()
    claims = node_claims(snapshot.scheduler.claims, info)
    found = rooms(seen)
    if found:
        yield Text()
        yield from Columns(("NUMA", "RESOURCE", "FREE", "OF"), list(_amounts(found))).lines()
    if isinstance(seen.offer, Inventory) and seen.offer.machine is not None:
        yield Text()
        holdings = with_claimed_cpus(seen, claims)
        owners = [CpuHolder(held.pod.name, held.cpus) for held in holdings if held.cpus]
        owners += claim_holders(unused_cpus(claims))
        yield from cpu_map.lines(Drawing(seen.offer.machine, owners, seen.offer.reserved, _shared(holdings)), width)
    if isinstance(seen.offer, KubeletView):
        yield from _known(seen.offer)
    yield Text()
    yield from Columns(
        ("POD", "QOS", "REQUESTS", "POLICY", "NUMA", "CPUS"), list(_pods(seen, snapshot, claims))
    ).lines()
    yield from _by_id(info)
    if claims:
        yield Text()
        yield from Columns(("CLAIM", "POD", "NUMA", "DEVICES"), list(claim_rows(seen, snapshot, claims))).lines()
    if tainted := list(_tainted(snapshot, info)):
        yield Text()
        yield from Columns(("DEVICE", "TAINTS"), tainted).lines()
    topology = snapshot.topologies.get(seen.node.name)
    if topology is not None and topology.pinning is not None:
        yield Text()
        yield Text(str(topology.pinning))
    if topology is not None and topology.differences:
        yield Text()
        yield from Columns(
            ("POD", "DIFFERENCE"), [[pod, str(one)] for pod, one in topology.differences.items()]
        ).lines()


def _by_id(info: NodeInfo) -> Iterator[Text]:
    """Yield the devices of the Device object by PCIe switch, and the free groups of GPUs."""
    found = devices_by_id(info)
    if found is not None:
        yield Text()
        yield from Columns(("NUMA", "PCIE SWITCH", "DEVICES"), list(switch_rows(found))).lines()
        if said := found["problem"] or groups_text(found):
            yield Text(said)


def _known(view: KubeletView) -> Iterator[Text]:
    """Yield the evidence for the state of a kubelet, and the bounds of free amounts if the state is uncertain."""
    known = known_of(view)
    yield Text()
    yield Text(f"{known.states} possible state{'s' if known.states > 1 else ''} of its kubelet, known from:")
    for sentence in known.evidence:
        yield Text(f"- {sentence}")
    if not known.is_certain:
        for one in known.free:
            yield Text(f"free on {one}")


def _shared(holdings: Iterable[Holding]) -> dict[int, str]:
    """Return the number of pods on shared CPUs, by NUMA node, as far as known."""
    counts = Counter(numa for held in holdings if not held.cpus for numa, _ in held.numa)
    return {numa: f"{count(number, 'pod')} on shared CPUs" for numa, number in counts.items()}


def _amounts(found: tuple[NumaUsage, ...]) -> Iterator[list[str]]:
    for room in found:
        for name in sorted(name for name, amount in room.total.items() if amount or name in (CPU, MEMORY)):
            least, free, there = (
                amounts_text({name: part.get(name, 0)}).partition(" ")[0]
                for part in (room.least, room.free, room.total)
            )
            yield [str(room.numa), name, free if least == free else f"{least}-{free}", there]


def _tainted(snapshot: Snapshot, info: NodeInfo) -> Iterator[list[str]]:
    """Yield the devices with taints of their driver or of DeviceTaintRules."""
    for key, it in published_devices(snapshot.scheduler.claims, info).items():
        if it.device.taints:
            yield [f"{key.driver} {key.device}", ", ".join(map(str, it.device.taints))]


def claim_rows(seen: NodeSnapshot, snapshot: Snapshot, claims: Sequence[HeldClaim]) -> Iterator[list[str]]:
    """Yield the claims with their pods, NUMA nodes and devices on the node."""
    info = snapshot.scheduler.cache.nodes[seen.node.name]
    machine = seen.offer.machine if isinstance(seen.offer, Inventory) else None
    for entry in claim_entries(claims, published_devices(snapshot.scheduler.claims, info), machine):
        held = [
            f"{it['driver']} {it['device']}" + (f" ({count(it['cpus'], 'CPU')})" if "cpus" in it else "")
            for it in entry["devices"]
        ]
        held += [f"CPUs {entry['cpus']}"] if entry["cpus"] else []
        yield [entry["claim"], ", ".join(entry["pods"]) or NONE, numa_text(entry["numa"]), ", ".join(held)]


def _pods(seen: NodeSnapshot, snapshot: Snapshot, claims: Sequence[HeldClaim]) -> Iterator[list[str]]:
    record = snapshot.scheduler.cache.nodes[seen.node.name]
    for held in with_claimed_cpus(seen, claims):
        uid = held.pod.uid
        pod = record.pods[uid] if uid in record.pods else record.nominees[uid].pod
        numa = [numa for numa, _ in held.numa] or _numa_of(seen, held.cpus)
        cpus = str(held.cpus) or _unknown(seen, pod) if uid in record.pods else "kept free for it"
        yield [str(held.pod), str(pod.request.qos) or NONE, asked(pod), policies(pod), numa_text(numa), cpus]


def _numa_of(seen: NodeSnapshot, cpus: CpuSet) -> list[int]:
    machine = seen.offer.machine if isinstance(seen.offer, Inventory) else None
    return list(CpuSet(machine.numa_of(cpus))) if machine is not None and cpus else []


def _unknown(seen: NodeSnapshot, pod: Pod) -> str:
    if isinstance(seen.offer, KubeletView):
        return "by the kubelet"
    return "not known" if pod.unknown_cpus else "shared"
