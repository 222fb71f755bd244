"""Where an init container may be on a node that is not followed, if pods have left there unseen."""

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.demand import PodDemand
from koord_numa.core.kubelet.state import Grant, KubeletNode, KubeletState, free_on
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy
from koord_numa.core.resources import CPU, MILLI, total


def lower_places(demand: PodDemand, grant: Grant, state: KubeletState) -> list[int]:
    """
    The NUMA nodes on which the first init container of this grant might be, and the rest not beside it, if pods have left.

    They are those below its own that could hold it if they were empty. Its own is one of them where later containers are foreseen
    elsewhere: with more room there they may take CPUs that it did not have, and those that it keeps tie the next container to it. None
    under best-effort, which admits what it cannot align.
    """
    node = state.node
    # As best-effort admits whatever hint wins, an init container elsewhere costs alignment and not the pod.
    if node.config.topology_policy is KubeletPolicy.BEST_EFFORT:
        return []
    whole = KubeletState.empty(node)
    for at, ((container, part), given) in enumerate(zip(demand.containers, grant.containers, strict=True)):
        if container.kind is not ContainerKind.INIT or not (given.cpus or given.devices):
            # The first init container with something of its own ties the rest.
            continue
        if given.hint is None or given.hint.mask is None:
            return []
        wanted = {
            CPU: part.cpus * MILLI,
            **{name: count for name, count in part.devices.items() if name in node.devices},
        }
        makes_do, own = _makes_do(demand, at, node), members(given.hint.mask)[0]
        if not makes_do and any(one.cpus and one.hint != given.hint for one in grant.containers[at:]):
            return [own]
        below = [numa for numa in node.machine.numa_ids if numa < own]
        rooms = {numa: free_on(node, whole.managers, numa) for numa in below}
        return [
            numa
            for numa, room in rooms.items()
            if all(room.get(name, 0) >= amount for name, amount in wanted.items())
            and not (makes_do and _has_memory(demand, state, numa))
        ]
    return []


def _makes_do(demand: PodDemand, at: int, node: KubeletNode) -> bool:
    """
    Do the containers after this init container need no more CPUs than it leaves them, and no devices?

    Then they fit wherever it is: a container that takes others than those leaves these to the next one.
    """
    left = demand.containers[at][1].cpus
    for container, part in demand.containers[at + 1 :]:
        if part.cpus > left:
            return False
        left -= part.cpus if container.kind is not ContainerKind.INIT else 0
    return not any(
        name in node.devices for _, part in demand.containers for name, count in part.devices.items() if count
    )


def _has_memory(demand: PodDemand, state: KubeletState, numa: int) -> bool:
    """Is the memory of all containers surely free there? Groups of NUMA nodes are not looked into."""
    memory = state.managers.memory
    if memory is None:
        return True
    if state.node.config.topology_policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        return False
    wanted = total(part.memory for _, part in demand.containers if part.memory)
    return all(memory.free[numa].get(kind, 0) >= amount for kind, amount in wanted.items())
