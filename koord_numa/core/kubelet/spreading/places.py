"""Of which NUMA nodes a container's CPUs may be, where only its hint and how many it has are known."""

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.state import ContainerGrant, KubeletNode


def places_of(node: KubeletNode) -> tuple[int, ...]:
    """The CPUs, as bits, of each NUMA node; of the machine where nothing is aligned, as it does not matter there which ones are free."""
    numas = tuple(node.machine.numa_bits.values())
    return numas if node.aligns else (sum(numas),)


def may_lie_otherwise(one: ContainerGrant, node: KubeletNode) -> bool:
    """Are its CPUs taken from several NUMA nodes, in numbers that depend on CPU ids?"""
    # With one NUMA node or real ids there is only one place.
    if not one.cpus or node.ids_are_real or len(node.machine.numa_ids) == 1:
        return False
    if one.numas:
        return one.numas & (one.numas - 1) != 0
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


def reached(container: ContainerGrant, node: KubeletNode) -> int:
    """The NUMA nodes, as a mask, from which its CPUs may come."""
    if container.numas:
        return container.numas
    machine = node.machine
    mask = container.hint.mask if container.hint is not None else None
    if mask is None:
        return machine.numa_mask
    near = sum(machine.numa_bits.get(numa, 0) for numa in members(mask))
    if node.static_options.align_by_socket:
        near = sum(bits for bits in machine.socket_bits.values() if bits & near)
    # What the hint's NUMA nodes do not have comes from any.
    if container.cpus.bits & ~near:
        return machine.numa_mask
    return sum(1 << numa for numa, bits in machine.numa_bits.items() if bits & near)
