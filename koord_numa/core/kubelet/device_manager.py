"""
The kubelet's device manager: which NUMA nodes could serve devices, and which devices a container gets.

Works on bits of devices that its caller keeps; it holds no state.
"""

from dataclasses import dataclass

from koord_numa.core.bit_sets import lowest
from koord_numa.core.kubelet.demand import UNEXPECTED_ADMISSION, AdmitRejection
from koord_numa.core.kubelet.state import DevicePool
from koord_numa.core.numa.counted import fewest_that_reach
from koord_numa.core.numa.hint_rule import IMPOSSIBLE, HintRule
from koord_numa.core.numa.hints import masks_of_size


@dataclass(frozen=True, slots=True)
class DeviceStock:
    """
    The devices of one resource at one moment, as bits: ``taken`` ones belong to some pod, and ``reusable`` ones among them were
    left by init containers of the pod that is being admitted.
    """

    resource: str
    pool: DevicePool
    taken: int = 0
    reusable: int = 0

    def hints(self, needed: int) -> HintRule | None:
        """
        Where ``needed`` devices could come from; ``None`` when no device has a NUMA node, so that any place will do.

        Only NUMA nodes that host such devices count, and unhealthy devices still lower the preferred size
        (generateDeviceTopologyHints in the kubelet's devicemanager/topology_hints.go, 1.36).
        """
        pool = self.pool
        if not pool.hosts:
            return None
        # Reusable devices are among those taken: they still belong to the pod.
        available = pool.healthy & ~self.taken
        if (available | self.reusable).bit_count() < needed:
            return IMPOSSIBLE
        pinned = self.reusable & pool.near(pool.hosts)

        def fits(mask: int) -> bool:
            near = pool.near(mask)
            return not pinned & ~near and pinned.bit_count() + (available & near).bit_count() >= needed

        return HintRule(nodes=pool.hosts, size=_smallest(pool, needed), fits=fits)

    def take(self, needed: int, mask: int | None) -> int | AdmitRejection:
        """
        The device bits that a container gets: reusable ones first, then those near ``mask``, then the rest.

        Among equals the plugin is taken to prefer the devices listed first. As devicesToAllocate in the kubelet's
        devicemanager/manager.go.
        """
        pool = self.pool
        if not pool.healthy:
            return AdmitRejection(UNEXPECTED_ADMISSION, f"no healthy {self.resource}")
        # Reusable ones first and whatever the hint says: devicesToAllocate returns them before it looks at topology.
        chosen = lowest(self.reusable, needed)
        needed -= chosen.bit_count()
        available = pool.healthy & ~self.taken & ~chosen
        if available.bit_count() < needed:
            return AdmitRejection(
                UNEXPECTED_ADMISSION, f"{self.resource}: needed {needed}, free {available.bit_count()}"
            )
        aligned = available & pool.near(mask) if mask is not None else 0
        chosen_near = lowest(aligned, needed)
        return chosen | chosen_near | lowest(available & ~aligned, needed - chosen_near.bit_count())


def _smallest(pool: DevicePool, needed: int) -> int:
    # The kubelet starts at the number of all NUMA nodes with devices and lowers it.
    if pool.near(pool.hosts).bit_count() < needed:
        return pool.hosts.bit_count()
    # Fewer than the counts of the roomiest NUMA nodes allow need not be tried; devices near two count twice here, so it is a
    # bound.
    for size in range(
        fewest_that_reach({numa: bits.bit_count() for numa, bits in pool.on.items()}, needed), pool.hosts.bit_count()
    ):
        if any(pool.near(mask).bit_count() >= needed for mask in masks_of_size(pool.hosts, size)):
            return size
    return pool.hosts.bit_count()
