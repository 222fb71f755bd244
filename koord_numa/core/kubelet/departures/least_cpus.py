"""
How many CPUs each part of the machine has free at least, wherever CPUs lie that may be dealt out otherwise.

Under a strict policy the hint by which a container was admitted has all its CPUs. They come from the NUMA nodes of the hint, with
align-by-socket from their sockets (``allocateCPUs`` in policy_static.go of the cpumanager), and so can be on no other one. Under other
policies they may come from anywhere.
"""

from koord_numa.core.bit_sets import lowest, members
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.room import STRICT
from koord_numa.core.kubelet.state import ContainerGrant, KubeletNode, ManagerState


def least_free(one: Hypothesis, part: int) -> int:
    """How many of these CPUs are free at least, as far as it is told where pods are."""
    return max(0, (one.state.managers.cpus & part).bit_count() - _may_come(one, part))


def with_least_free(one: Hypothesis) -> ManagerState:
    """The managers with no more CPUs free on any NUMA node than there are at least."""
    managers, free = one.state.managers, 0
    for here in one.state.node.machine.numa_bits.values():
        free |= lowest(managers.cpus & here, least_free(one, here))
    return ManagerState(free, managers.devices, managers.memory)


def _may_come(one: Hypothesis, part: int) -> int:
    """How many CPUs that pods hold elsewhere may be among these instead."""
    node, coming = one.state.node, 0
    for uid in one.spread:
        for given in one.state.pods[uid].grant.containers:
            coming += (given.cpus.bits & ~part).bit_count() if _reach(given, node) & part else 0
    return coming


def _reach(given: ContainerGrant, node: KubeletNode) -> int:
    """The CPUs among which those of the container may be."""
    machine = node.machine
    mask = given.hint.mask if given.hint is not None else None
    if not given.numas and (mask is None or node.config.topology_policy not in STRICT):
        return sum(machine.numa_bits.values())
    near = sum(machine.numa_bits.get(numa, 0) for numa in members(given.numas or mask or 0))
    if given.numas or not node.static_options.align_by_socket:
        return near
    return near | sum(bits for bits in machine.socket_bits.values() if bits & near)
