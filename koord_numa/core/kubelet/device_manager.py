"""
The kubelet's device manager: topology hints (``devicemanager/topology_hints.go``), and the devices of a container (``manager.go``).

Sets of devices are bits that the caller keeps.
"""

from koord_numa.core.cpuset import lowest
from koord_numa.core.kubelet.demand import UNEXPECTED_ADMISSION, AdmitRejection
from koord_numa.core.kubelet.state import DevicePool
from koord_numa.core.numa.hint_providers import IMPOSSIBLE, HintRule, fewest_that_reach
from koord_numa.core.numa.hints import masks_of_size
from koord_numa.core.value_objects import ValueObject


class DeviceStock(ValueObject):
    """
    The devices of one resource at one moment of an admission, as bits: ``taken`` devices belong to pods. Of these, ``reusable`` devices
    were left by init containers of the pod that is being admitted.
    """

    resource: str
    pool: DevicePool
    taken: int = 0
    reusable: int = 0

    def hints(self, count: int) -> HintRule | None:
        """
        Return the hints for ``count`` devices, or ``None`` (no preference) if no device has a NUMA node (generateDeviceTopologyHints).

        Only NUMA nodes near a device count. A mask must include all reusable devices. Unhealthy devices count for the preferred size.
        """
        pool = self.pool
        if not pool.hosts:
            return None
        available = pool.healthy & ~self.taken
        if (available | self.reusable).bit_count() < count:
            return IMPOSSIBLE
        pinned = self.reusable & pool.near(pool.hosts)

        def fits(mask: int) -> bool:
            near = pool.near(mask)
            return not pinned & ~near and pinned.bit_count() + (available & near).bit_count() >= count

        return HintRule(nodes=pool.hosts, size=_preferred_size(pool, count), fits=fits)

    def take(self, count: int, mask: int | None) -> int | AdmitRejection:
        """
        Return the device bits of a container: reusable devices, then devices near ``mask``, then others (devicesToAllocate).

        Among equal devices the plugin is assumed to prefer those listed first.
        """
        pool = self.pool
        if not pool.healthy:
            return AdmitRejection(UNEXPECTED_ADMISSION, f"no healthy {self.resource}")
        # The kubelet takes reusable devices before it applies the hint.
        chosen = lowest(self.reusable, count)
        count -= chosen.bit_count()
        available = pool.healthy & ~self.taken & ~chosen
        if available.bit_count() < count:
            return AdmitRejection(
                UNEXPECTED_ADMISSION, f"{self.resource}: needed {count}, free {available.bit_count()}"
            )
        aligned = available & pool.near(mask) if mask is not None else 0
        chosen_aligned = lowest(aligned, count)
        return chosen | chosen_aligned | lowest(available & ~aligned, count - chosen_aligned.bit_count())


def _preferred_size(pool: DevicePool, count: int) -> int:
    """Return the smallest number of NUMA nodes near ``count`` devices, or the number of all NUMA nodes near devices."""
    # A device near two NUMA nodes counts twice here, so that the result is a lower bound.
    fewest = fewest_that_reach({numa: bits.bit_count() for numa, bits in pool.on.items()}, count)
    for size in range(fewest, pool.hosts.bit_count()):
        if any(pool.near(mask).bit_count() >= count for mask in masks_of_size(pool.hosts, size)):
            return size
    return pool.hosts.bit_count()
