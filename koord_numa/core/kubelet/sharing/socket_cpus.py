"""
From which NUMA nodes a container gets CPUs where ``align-by-socket`` offers it those of whole sockets, and only numbers of CPUs are known.

Theory. The kubelet packs (``core/cpus/kubelet_packed``): of the NUMA nodes of a socket the one with the fewest free CPUs comes first, equal
ones in the order of their ids, and whole cores before single CPUs. Which NUMA nodes that touches follows from numbers alone

- for one CPU: it comes from the first NUMA node that has any;
- where all CPUs are handed out in whole cores (``full-pcpus-only``) and no reserved CPU spoils a core of these NUMA nodes: each of them is
  used up before the next, whatever a core has of threads. An odd number of CPUs proves that it has one, so that none is spoiled;
- where the first NUMA node surely has enough whole cores of one or two threads: so many CPUs that are in use spoil at most as many cores;
- where one NUMA node has all of the free CPUs.

CPUs that an init container left are offered beside the free ones; of them only those are certain that as large a container gets again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from koord_numa.core.bit_sets import members
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.managers.kubelet_node import KubeletNode
from koord_numa.core.kubelet.managers.results import ContainerGrant, Grant
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy


def offers_sockets(node: KubeletNode) -> bool:
    """Are CPUs packed into sockets, in made-up ids, where it matters? Best-effort refuses nothing for where CPUs are."""
    by_socket = node.static_options.align_by_socket and node.packs_sockets
    return by_socket and not node.ids_are_real and node.config.topology_policy is KubeletPolicy.RESTRICTED


def located(grant: Grant, free: int, node: KubeletNode) -> Grant:
    """The grant, which was made of these free CPUs (bits) of sockets, with the containers marked whose NUMA nodes are certain."""
    return replace(grant, containers=tuple(_marked(grant.containers, free, node)))


def _marked(containers: Sequence[ContainerGrant], free: int, node: KubeletNode) -> Iterator[ContainerGrant]:
    reusable, known = 0, True  # are the places of all containers before it?
    same: list[ContainerGrant] = []  # init containers that chose from the pool that the next one chooses from
    for one in containers:
        bits = one.cpus.bits
        if bits:
            again = any(before.cpus == one.cpus for before in same) or _takes_over(one, reusable, node)
            known = known and (again or (not reusable and _is_certain(one, free, node)))
            one = replace(one, certain=known)
            free &= ~bits
            is_init = one.kind is ContainerKind.INIT
            reusable = reusable | bits if is_init else reusable & ~bits
            same = [*same, one] if is_init else []
        yield one


def _takes_over(one: ContainerGrant, reusable: int, node: KubeletNode) -> bool:
    """Does it get some of its init containers' CPUs of one NUMA node? Whole cores come in ascending order (``CpuStock.take``)."""
    smallest = min(here.bit_count() for here in node.machine.numa_bits.values() if here)
    holders = [here for here in node.machine.numa_bits.values() if here & reusable]
    few = reusable.bit_count() < smallest
    return node.takes_whole_cores and few and len(holders) == 1 and not one.cpus.bits & ~reusable


def _is_certain(one: ContainerGrant, free: int, node: KubeletNode) -> bool:
    bits, mask = one.cpus.bits, one.hint.mask if one.hint is not None else None
    if mask is None:
        return False
    numas = node.machine.numa_bits
    sockets = [here for here in node.machine.socket_bits.values() if any(here & numas.get(n, 0) for n in members(mask))]
    if len(sockets) != 1 or bits & ~sockets[0]:
        return False
    there = [here for here in numas.values() if here & sockets[0] & free]
    needed = bits.bit_count()
    if needed == 1 or len(there) == 1:
        return True
    if node.takes_whole_cores:
        return needed % 2 == 1 or not any(here & bits and here & node.reserved for here in there)
    return _fits_first(min(there, key=lambda here: (here & free).bit_count()), needed, free)


def _fits_first(first: int, needed: int, free: int) -> bool:
    """Has the NUMA node with the fewest free CPUs surely as many in whole cores? If it is all free it may not be the first."""
    left = (first & free).bit_count()
    used = first.bit_count() - left
    return bool(used) and left >= needed and left - used >= needed - needed % 2


def may_lie_otherwise(one: ContainerGrant, node: KubeletNode) -> bool:
    """Are its CPUs taken from several NUMA nodes, in numbers that depend on CPU ids?"""
    # With one NUMA node or real ids there is only one place.
    if not one.cpus or one.certain or node.ids_are_real or len(node.machine.numa_ids) == 1:
        return False
    mask = one.hint.mask if one.hint is not None else None
    # Best-effort takes CPUs beyond the hint, too: of which NUMA nodes depends on sockets and CPU ids.
    if mask is None or mask.bit_count() > 1 or one.cpus.bits & ~node.machine.numa_bits.get(mask.bit_length() - 1, 0):
        return True
    return node.static_options.align_by_socket and shares_socket(node, mask)


def shares_socket(node: KubeletNode, mask: int) -> bool:
    """Does a socket of these NUMA nodes have others, too? Only then CPUs are taken elsewhere by align-by-socket."""
    machine = node.machine
    here = 0
    for numa in members(mask):
        here |= machine.numa_bits.get(numa, 0)
    return any(bits & here and bits & ~here for bits in machine.socket_bits.values())


def exchanged(cpus: CpuSet, others: Mapping[int, int]) -> CpuSet:
    """With another CPU in the place of each that is a key of ``others``."""
    return CpuSet.of([others.get(cpu, cpu) for cpu in cpus])


def is_dealt(one: ContainerGrant) -> bool:
    """Does a topology alone tell where its CPUs are? Of init containers none does, and of some numbers of free CPUs do."""
    return one.kind is not ContainerKind.INIT and not one.certain


def left_by_init(grant: Grant) -> list[ContainerGrant]:
    """The init containers with CPUs that no later container of the pod has."""
    lasting = sum(one.cpus.bits for one in grant.containers if one.kind is not ContainerKind.INIT)
    return [one for one in grant.containers if one.kind is ContainerKind.INIT and one.cpus.bits & ~lasting]
