"""
What one pod can see of a kubelet's state: states that are equal in it treat the pod alike.

Theory. The managers compare what is free on sets of NUMA nodes with what a container asks for. Resources that no container asks for are
never looked at, and of what is asked for it makes no difference how much more is free on a NUMA node than all containers need together:
any set with that NUMA node has enough before and after. CPUs are an exception where they may be taken from several NUMA nodes, which is
done in the order of how many are free on each, and where those of an init container are packed into cores by how many are free there.

Of devices that may be near several NUMA nodes the masks of the free ones are compared, in the plugin's order. What those in use are near
makes a difference only where a container needs more than any NUMA node has.
"""

from collections.abc import Sequence

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.budget import spend
from koord_numa.core.kubelet.demand import ContainerDemand, pod_demand
from koord_numa.core.kubelet.inference.hypothesis import Signature, cpus_by_numa, pins_init_cpus, variant_of
from koord_numa.core.kubelet.room import STRICT, everything
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, KubeletState, MemoryTable
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletScope
from koord_numa.core.resources import ResourceList


class Sight:
    """One pod that looks at many states of one node."""

    def __init__(self, request: PodRequest, node: KubeletNode) -> None:
        self._demand = pod_demand(request)
        self._all = everything(request)
        self._units = _units(request, node)
        self._has_init_cpus = pins_init_cpus(self._demand, node)
        self._strict = node.config.topology_policy in STRICT
        self._fewest_cpus = min((unit.cpus for unit in self._units if unit.cpus), default=0)
        self._bound: bool | None = None
        self._single: dict[tuple[int, int], bool] = {}  # by variant of the node

    def of(self, state: KubeletState) -> Signature:
        """Equal for states in which the managers treat the pod alike."""
        spend()
        node, managers = state.node, state.managers
        seen: list[object] = [] if self._is_same_on_all_variants(node) else [variant_of(node)]
        if self._all.cpus and node.pins_cpus:
            seen += (
                node.packs,
                node.takes_whole_cores,
                node.whole_cores,
                self.cpus(node, cpus_by_numa(managers.cpus, node)),
            )
        if managers.memory is not None and self._all.memory:
            seen.append(self._memory(managers.memory))
        for name, most in self._all.devices.items():
            pool = node.devices.get(name)
            if pool is not None:
                seen.append(self._devices(name, most, pool, pool.healthy & ~managers.devices[name]))
        return tuple(seen)

    def _is_same_on_all_variants(self, node: KubeletNode) -> bool:
        """Do sockets, distances, and how CPUs are dealt out over several NUMA nodes, make no difference?"""
        if self._all.cpus and node.pins_cpus and not self._stays_on_one(node):
            return False
        return not node.prefers_closest or self._comes_to_one(node)

    def _comes_to_one(self, node: KubeletNode) -> bool:
        """Is each preferred hint of one NUMA node, all of which are equally near to themselves?"""
        machine = node.machine
        if not self._strict or len({machine.distance(numa, numa) for numa in machine.numa_ids}) > 1:
            return False
        return all(self._has_one(unit, node) for unit in self._units)

    def _has_one(self, unit: ContainerDemand, node: KubeletNode) -> bool:
        """Does one of the unit's resources need no more than one NUMA node?"""
        if unit.cpus and node.pins_cpus:
            return True  # else it has been found to need several
        pools = ((node.devices[name], count) for name, count in unit.devices.items() if count and name in node.devices)
        if any(any(here.bit_count() >= count for here in pool.on.values()) for pool, count in pools):
            return True
        wanted = unit.memory or {}
        return bool(wanted) and node.pins_memory and any(_covers(here, wanted) for here in node.memory.values())

    def cpus(self, node: KubeletNode, counts: Sequence[int]) -> Signature | int:
        """Equal where so many free CPUs on every NUMA node are the same to the pod."""
        if not node.aligns:
            return sum(counts)  # taken without a look at NUMA nodes
        most = self._all.cpus
        if not self._stays_on_one(node):
            return tuple(counts)
        if node.packs and self._has_init_cpus:
            most = 2 * most + 8 * len(self._demand.containers)  # ``cpu_overlap`` looks at no more
        capped = [min(count, most) if count >= self._fewest_cpus else 0 for count in counts]
        if self._has_init_cpus:
            # Of a NUMA node that is entirely free more is known (``whole_node_overlap``).
            whole = zip(counts, node.machine.numa_bits.values(), strict=True)
            return (*capped, *[count == bits.bit_count() for count, bits in whole])
        return tuple(capped)

    def _stays_on_one(self, node: KubeletNode) -> bool:
        """Does each unit get its CPUs from one NUMA node?"""
        variant = variant_of(node)
        if variant not in self._single:
            largest = max(bits.bit_count() for bits in node.machine.numa_bits.values())
            plain = not node.static_options.align_by_socket and node.whole_cores is None
            # A preferred hint is no wider than the narrowest that one of its resources needs.
            self._single[variant] = self._strict and plain and all(unit.cpus <= largest for unit in self._units)
        return self._single[variant]

    def _memory(self, table: MemoryTable) -> Signature:
        kinds = (self._all.memory or {}).items()
        free = [tuple([min(amounts.get(kind, 0), most) for kind, most in kinds]) for amounts in table.free.values()]
        if not self._binds_to_one(table):
            return (*free, *table.groups.values(), *map(bool, table.blocks.values()))
        alone = (
            table.groups[numa] == 1 << numa and self._is_any_bound(amounts) for numa, amounts in table.free.items()
        )
        return tuple([here if usable else None for here, usable in zip(free, alone, strict=True)])

    def _binds_to_one(self, table: MemoryTable) -> bool:
        """Is the memory of each unit bound to one NUMA node, so that groups of several and what is in use there is not looked at?"""
        if self._bound is None:
            empty = list(table.supply.values())
            # Under scope pod types that only init containers ask for are in no hint.
            hinted = set().union(*[unit.memory or () for unit in self._units]) == (self._all.memory or {}).keys()
            self._bound = (
                self._strict
                and hinted
                and all(any(_covers(amounts, unit.memory) for amounts in empty) for unit in self._units if unit.memory)
            )
        return self._bound

    def _is_any_bound(self, free: ResourceList) -> bool:
        return any(_covers(free, unit.memory) for unit in self._units if unit.memory)

    def _devices(self, name: str, most: int, pool: DevicePool, free: int) -> Signature:
        largest = max(unit.devices.get(name, 0) for unit in self._units)
        wide = largest > max((here.bit_count() for here in pool.on.values()), default=0)
        if self._strict and not (wide or pool.assumed) and all(_is_near_one(device.near) for device in pool.devices):
            counts = [min(most, (free & here).bit_count()) for here in pool.on.values()]
            return (tuple(counts), min(most, free.bit_count()))
        masks = [pool.devices[place].near for place in members(free)]
        return (*masks, tuple(sorted(device.near for device in pool.devices))) if wide else tuple(masks)


def _covers(amounts: ResourceList, demand: ResourceList) -> bool:
    return all(amounts.get(kind, 0) >= amount for kind, amount in demand.items())


def _is_near_one(near: int) -> bool:
    return not near & (near - 1)


def _units(request: PodRequest, node: KubeletNode) -> Sequence[ContainerDemand]:
    """What is aligned together."""
    demand = pod_demand(request)
    return [demand.pod] if node.config.topology_scope is KubeletScope.POD else [part for _, part in demand.containers]
