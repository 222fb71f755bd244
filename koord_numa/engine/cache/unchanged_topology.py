"""
Topologies that are published again and say nothing new, as koordlet does once a minute where nothing has happened.

Where the scheduler hands out CPUs, its own ledger tells what is free, and no one waits for a newer topology. So one that differs from the
last by its version alone changes nothing: no class is tried again for it, and nothing that is remembered of the node is out of date. Where
a kubelet chooses, an equal topology is news all the same: it was published later.
"""

from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.node_info import NodeInfo


def renewed(info: NodeInfo, new: NodeResourceTopology | None, now: float) -> bool:
    """Take in a topology of another version that says what the node's topology said, if it is one; was it?"""
    known = info.published
    if known is None or new is None or new.owner is not CpuOwner.SCHEDULER or info.unpublished:
        return False
    version = new.resource_version
    if version == known.resource_version or replace(new, resource_version=known.resource_version) != known:
        return False
    info.published, info.topology_seen = new, now
    if info.topology is not None:  # it may have been completed by what the configuration says
        info.topology = replace(info.topology, resource_version=version)
    return True
