"""What the allocator needs to know of one node."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord_numa.core.claims.objects.features import ALL_FEATURES, Features
from koord_numa.core.claims.objects.pools import Pool
from koord_numa.core.claims.search.budget import Selectors
from koord_numa.core.claims.search.inventory import DeviceId, NumaByRoot
from koord_numa.core.selectors import Labels


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """
    The devices of one node: ``pools`` in the order in which they are tried. ``numa_by_root`` is the NUMA node by PCIe root.

    With a ``numa_mask``, a device is tried only if each of its ``places`` has a NUMA node in the mask; a device without places always is.
    """

    name: str
    labels: Labels = field(default_factory=dict)
    pools: tuple[Pool, ...] = ()
    features: Features = ALL_FEATURES
    numa_mask: int = 0  # 0 sets no bound
    places: Mapping[DeviceId, tuple[int, ...]] = field(default_factory=dict)  # masks of NUMA nodes
    numa_by_root: NumaByRoot = field(default_factory=dict)
    selectors: Selectors = field(default_factory=Selectors, compare=False)
