"""What the allocator needs to know of one node."""

from dataclasses import dataclass, field

from koord_numa.core.claims.objects.features import ALL_FEATURES, Features
from koord_numa.core.claims.objects.pools import Pool
from koord_numa.core.claims.search.inventory import NumaByRoot
from koord_numa.core.selectors import Labels


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices of one node: ``pools`` in the order in which they are tried. ``numa_by_root`` is the NUMA node by PCIe root."""

    name: str
    labels: Labels = field(default_factory=dict)
    pools: tuple[Pool, ...] = ()
    features: Features = ALL_FEATURES
    numa_mask: int = 0  # only devices on these NUMA nodes, or of unknown place, are tried; 0 sets no bound
    numa_by_root: NumaByRoot = field(default_factory=dict)
