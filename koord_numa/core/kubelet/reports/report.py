"""
Does a published topology agree with a hypothesis about the pods that it shows? And what does it say about pods spread over NUMA nodes?

An exporter counts what running app containers and sidecars use (the pod resources API leaves regular init containers out), per NUMA node.
Memory blocks over several NUMA nodes count in full on each of them (resource-topology-exporter), or fill them up in ascending order (NFD).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.demand import is_memory
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.inference.socket_cpus import is_located
from koord_numa.core.kubelet.inference.unlocated import Rest, rest_of
from koord_numa.core.kubelet.spreading.places import may_lie_otherwise
from koord_numa.core.kubelet.state import ContainerGrant, Grant, KubeletNode
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import CPU, MILLI


@dataclass(slots=True)
class Use:
    """What the shown pods use by a hypothesis, per NUMA node. ``loose`` parts are known in sum only."""

    cpus: dict[int, int]
    spread: int = 0
    memory: dict[tuple[int, str], int] = field(default_factory=dict)  # blocks on one NUMA node, in bytes
    blocks: list[tuple[str, int, int]] = field(default_factory=list)  # (type, mask, bytes) of wider ones
    devices: dict[tuple[int, str], int] = field(default_factory=dict)
    partly: bool = False  # some shown pod's place is not known


def agrees(one: Hypothesis, shown: Collection[str], zones: Sequence[Zone]) -> bool:
    """Could an exporter have published these zones when just these pods ran, if the hypothesis is true?"""
    use = cpus_of(one, shown)
    if use is None:
        return False
    node = one.state.node
    published = {zone.numa: in_use(zone) for zone in zones}
    # Most sets of pods fail for their CPUs, so that memory and devices are counted for the others only.
    if node.pins_cpus and not _cpus_agree(use, published):
        return False
    _count_bound(use, one, shown)
    return (not node.pins_memory or _memory_agrees(use, zones)) and _devices_agree(use, node, published)


def may_come_to(one: Hypothesis, shown: Collection[str], zones: Sequence[Zone]) -> bool:
    """Can these zones be published later, when more of these pods have come? Those that are there must not use more than the zones show."""
    use = use_of(one, [uid for uid in shown if uid in one.state.pods])
    if use is None:
        return True
    found = [((numa, CPU), count * MILLI) for numa, count in use.cpus.items()]
    # Where nothing is left, exporters may have cut off what is used beyond.
    most = {
        (zone.numa, name): amount
        for zone in zones
        for name, amount in in_use(zone).items()
        if zone.available.get(name, 0) > 0
    }
    found += [*use.memory.items(), *use.devices.items()]
    return all(amount <= most.get(key, amount) for key, amount in found)


def may_explain(one: Hypothesis, shown: Sequence[Collection[str]], zones: Sequence[Zone]) -> bool:
    """For one of these sets of pods: as ``agrees`` where all of them have come already, else as ``may_come_to``."""
    return any(
        (agrees if all(one.has(uid) or uid in one.gone for uid in pods) else may_come_to)(one, pods, zones)
        for pods in shown
    )


def in_use(zone: Zone) -> dict[str, int]:
    """What a zone shows in use."""
    # In use is allocatable less available: reserved amounts are in neither.
    return {name: amount - zone.available.get(name, 0) for name, amount in zone.allocatable.items()}


def _grant(one: Hypothesis, uid: str) -> Grant | None:
    pod = one.state.pods.get(uid)
    return pod.grant if pod is not None else one.gone.get(uid)


def use_of(one: Hypothesis, shown: Collection[str]) -> Use | None:
    """What these pods use by the hypothesis; ``None`` where it does not have one of them."""
    use = cpus_of(one, shown)
    if use is not None:
        _count_bound(use, one, shown)
    return use


def cpus_of(one: Hypothesis, shown: Collection[str]) -> Use | None:
    """As ``use_of``, of CPUs alone."""
    node = one.state.node
    counts = [(0,) * len(node.machine.numa_bits)]
    use = Use({})
    # Without alignment CPUs come from anywhere, so that of unlocated pods only the sum over all NUMA nodes is known.
    in_sum = bool(one.unlocated) and not node.aligns
    for uid in shown:
        if uid in one.unlocated:
            continue
        grant = _grant(one, uid)
        if grant is None:
            if uid not in one.unplaced and uid not in one.gone:
                return None  # the kubelet did not admit it here
            use.partly = True
        elif in_sum or uid in one.spread or uid in one.mixed or _may_have_lain_otherwise(one, uid):
            for container in _running(grant):
                if in_sum or not is_located(container):
                    use.spread += len(container.cpus)
                else:
                    counts.append(cpus_by_numa(container.cpus.bits, node))
        else:
            counts.append(_running_cpus(grant, node))
    use.cpus = dict(zip(node.machine.numa_bits, map(sum, zip(*counts, strict=True)), strict=True))
    if one.unlocated:
        _count_unlocated(use, rest_of(one).cpus, node)
    return use


def _may_have_lain_otherwise(one: Hypothesis, uid: str) -> bool:
    """Had a pod that is gone CPUs of several NUMA nodes, in numbers that may be others? Where it was is tried out where no hint tells."""
    grant = one.gone.get(uid)
    if grant is None or uid in one.state.pods:
        return False
    return any(each.hint is not None and may_lie_otherwise(each, one.state.node) for each in grant.containers)


def _count_unlocated(use: Use, cpus: int, node: KubeletNode) -> None:
    """What unlocated pods hold of CPUs is known for every NUMA node, where the kubelet aligns."""
    if not node.aligns:
        use.spread += cpus.bit_count()
        return
    for numa, here in node.machine.numa_bits.items():
        use.cpus[numa] += (cpus & here).bit_count()


def running_cpus(one: Hypothesis, uids: Collection[str]) -> dict[str, int]:
    """How many CPUs a topology shows of each of these pods; nothing of those that the state does not have, or where none are exclusive."""
    node = one.state.node
    found = ((uid, _grant(one, uid)) for uid in uids) if node.pins_cpus else ()
    return {uid: sum(_running_cpus(grant, node)) for uid, grant in found if grant is not None}


def _running(grant: Grant) -> Iterator[ContainerGrant]:
    # The pod resources API lists running containers only, so finished init containers are not in a topology.
    return (container for container in grant.containers if container.kind is not ContainerKind.INIT)


def _running_cpus(grant: Grant, node: KubeletNode) -> tuple[int, ...]:
    """How many CPUs of each NUMA node the containers of a pod use. Worked out once for a grant, which belongs to one node."""
    if not grant.running:
        found = [0] * len(node.machine.numa_bits)
        for container in _running(grant):
            found = [*map(add, found, cpus_by_numa(container.cpus.bits, node))]
        # As ``place`` it is set past the dataclass: topologies are compared with many states that share their grants.
        object.__setattr__(grant, "running", tuple(found))
    return grant.running


def _count_bound(use: Use, one: Hypothesis, shown: Collection[str]) -> None:
    """Memory and devices, and what unlocated pods hold of these."""
    for uid in shown:
        grant = None if uid in one.unlocated else _grant(one, uid)
        for container in _running(grant) if grant is not None else ():
            _count(use, container, one.state.node)
    if one.unlocated:
        _count_rest(use, rest_of(one), one.state.node)


def _count_rest(use: Use, rest: Rest, node: KubeletNode) -> None:
    """What unlocated pods hold of memory is known for every group of NUMA nodes."""
    for mask, kinds in rest.memory.items():
        for kind, amount in kinds.items():
            if mask.bit_count() == 1:
                key = members(mask)[0], kind
                use.memory[key] = use.memory.get(key, 0) + amount
            else:
                use.blocks.append((kind, mask, amount))
    for resource, bits in rest.devices.items():
        for at in members(bits):
            near = node.devices[resource].devices[at].near
            if near.bit_count() == 1:
                key = members(near)[0], resource
                use.devices[key] = use.devices.get(key, 0) + 1


def _count(use: Use, container: ContainerGrant, node: KubeletNode) -> None:
    for block in container.memory:
        # ``[0]``: the only member of a mask of one bit.
        if block.mask.bit_count() == 1:
            key = members(block.mask)[0], block.resource
            use.memory[key] = use.memory.get(key, 0) + block.amount
        else:
            use.blocks.append((block.resource, block.mask, block.amount))
    for resource, ids in container.devices.items():
        pool = node.devices[resource]
        for place in map(pool.places.__getitem__, ids):
            # Which devices are near several NUMA nodes is not known, so their counts tell nothing.
            near = pool.masks[place]
            if near.bit_count() == 1:
                key = members(near)[0], resource
                use.devices[key] = use.devices.get(key, 0) + 1


def _cpus_agree(use: Use, published: Mapping[int, Mapping[str, int]]) -> bool:
    counts = {numa: amounts.get(CPU, 0) // MILLI for numa, amounts in published.items()}
    if use.partly or use.spread:
        # A pod whose place is unknown may be anywhere: what is published is then a bound from below only.
        enough = all(counts.get(numa, 0) >= used for numa, used in use.cpus.items())
        return enough and (use.partly or sum(counts.values()) == sum(use.cpus.values()) + use.spread)
    return all(counts.get(numa, 0) == used for numa, used in use.cpus.items())


def _memory_agrees(use: Use, zones: Sequence[Zone]) -> bool:
    kinds = {kind for zone in zones for kind in zone.allocatable if is_memory(kind)}
    for kind in kinds:
        most = {zone.numa: zone.allocatable.get(kind, 0) for zone in zones}
        counts = {zone.numa: most[zone.numa] - zone.available.get(kind, 0) for zone in zones}
        alone = {numa: use.memory.get((numa, kind), 0) for numa in counts}
        # Blocks of zero bytes belong to a group without leaving a trace in amounts.
        blocks = [(mask, size) for resource, mask, size in use.blocks if resource == kind and size]
        if use.partly:
            if any(counts[numa] < alone[numa] for numa in counts):
                return False
        # The exporter is not named in its object, so either way of counting will do.
        elif not (_in_full(counts, alone, blocks, most) or _filled_up(counts, alone, blocks)):
            return False
    return True


def _in_full(
    counts: Mapping[int, int],
    alone: Mapping[int, int],
    blocks: Sequence[tuple[int, int]],
    most: Mapping[int, int],
) -> bool:
    """resource-topology-exporter: a block counts with its whole size on each of its NUMA nodes, up to what there is."""
    for numa, used in counts.items():
        due = alone[numa] + sum(size for mask, size in blocks if mask >> numa & 1)
        # ``available`` is never below 0: what is due beyond all that the NUMA node has is cut off, and nothing else.
        if used != min(due, max(alone[numa], most[numa])):
            return False
    return True


def _filled_up(counts: Mapping[int, int], alone: Mapping[int, int], blocks: Sequence[tuple[int, int]]) -> bool:
    """NFD: a block fills its NUMA nodes up one after the other; only the sum over NUMA nodes that blocks join is certain."""
    joined = 0
    for mask, _ in blocks:
        joined |= mask
    if any(used != alone[numa] for numa, used in counts.items() if not joined >> numa & 1):
        return False
    within = [numa for numa in counts if joined >> numa & 1]
    return sum(counts[numa] for numa in within) == sum(alone[numa] for numa in within) + sum(size for _, size in blocks)


def _devices_agree(use: Use, node: KubeletNode, published: Mapping[int, Mapping[str, int]]) -> bool:
    for resource, pool in node.devices.items():
        if pool.assumed:
            continue
        if not node.aligns:
            # Devices are handed out in the plugin's order, which is unknown; only their number counts then.
            used = sum(amounts.get(resource, 0) for amounts in published.values())
            due = sum(count for (_, name), count in use.devices.items() if name == resource)
            if used < due or (used > due and not use.partly):
                return False
            continue
        for numa, amounts in published.items():
            used, due = amounts.get(resource, 0), use.devices.get((numa, resource), 0)
            if used < due or (used > due and not use.partly):
                return False
    return True
