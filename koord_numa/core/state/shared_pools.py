"""
The CPUs that pods without own CPUs share: one pool per NUMA node, and a wider one for best-effort pods.

What the node agent publishes as cpu-shared-pools and be-cpu-shared-pools, computed from our own ledger.
"""

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import SharedPool
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger


def shared_pools(inventory: Inventory, ledger: Ledger) -> tuple[SharedPool, ...]:
    """
    The pools of LS and Burstable pods, by socket and then NUMA node: every CPU that no pod has for itself.

    CPUs reserved for the kubelet belong to them (fine-grained CPU orchestration, "Basic CPU orchestration principles").
    """
    return _pools(inventory, ledger.cpus)


def _pools(inventory: Inventory, taken: CpuSet) -> tuple[SharedPool, ...]:
    if inventory.machine is None:
        return ()
    free = inventory.machine.all - taken - inventory.kept_from_pools
    pools = (
        SharedPool(socket=socket_of(inventory, numa), numa=numa, cpus=CpuSet(bits) & free)
        for numa, bits in inventory.machine.numa_bits.items()
        if bits
    )
    # By socket first, as Koordinator's node agent publishes them.
    return tuple(sorted(pools, key=lambda pool: (pool.socket, pool.numa)))


def socket_of(inventory: Inventory, numa: int) -> int:
    """The socket of a NUMA node: the lowest that any of its CPUs is in; 0 when it has none or none are known."""
    machine = inventory.machine
    if machine is None:
        return 0
    here = machine.numa_bits.get(numa, 0)
    return min((socket for socket, bits in machine.socket_bits.items() if bits & here), default=0)
