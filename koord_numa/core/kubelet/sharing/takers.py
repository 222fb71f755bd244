"""The containers of one pod that take devices of one resource, and what they leave to one another."""

from dataclasses import dataclass

from koord_numa.core.kubelet.demand import PodDemand
from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope


@dataclass(frozen=True, slots=True)
class Takers:
    """The containers of one pod that take devices of one resource; ``new``: so many devices are taken before the last one's turn."""

    new: int
    init: bool  # does an init container take some of these?
    lone: bool  # is one container left after a single init container, of all that get something of NUMA nodes?
    counts: tuple[int, ...]

    @property
    def largest(self) -> int:
        """The most devices that one of them takes."""
        return max(self.counts, default=0)


def takers_of(demand: PodDemand, name: str, node: KubeletNode) -> Takers:
    """Of the devices of resource ``name``."""
    reusable = new = 0
    init = False
    takers = [(container.kind, part.devices[name]) for container, part in demand.containers if part.devices.get(name)]
    for kind, count in takers[:-1] if _aligned_one_by_one(node) else ():
        new += max(0, count - reusable)
        init = init or kind is ContainerKind.INIT
        reusable = max(reusable, count) if kind is ContainerKind.INIT else max(0, reusable - count)
    own = [
        container.kind
        for container, part in demand.containers
        if (part.cpus and node.pins_cpus)
        or (part.memory and node.pins_memory)
        or any(count and other in node.devices for other, count in part.devices.items())
    ]
    return Takers(
        new=new,
        init=init,
        lone=len(own) == len(takers) == 2 and own[0] is ContainerKind.INIT,
        counts=tuple(count for _, count in takers),
    )


def _aligned_one_by_one(node: KubeletNode) -> bool:
    """
    May one container's devices cost another one its admission? Not where there is one hint for the whole pod, nor under best-effort
    without memory to bind, which refuses nothing that there is enough of.
    """
    config = node.config
    if config.topology_scope is not KubeletScope.CONTAINER:
        return False
    return config.topology_policy is not KubeletPolicy.BEST_EFFORT or node.pins_memory
