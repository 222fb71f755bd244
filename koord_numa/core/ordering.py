"""
Every tie-break of the core: what is preferred among nodes, pods, places, cores and CPUs that would do equally well.

Keys end in a unique id, so that no answer depends on the order of its inputs. Nothing is chosen here, only compared.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.vocabulary import NumaAllocateStrategy, QosClass

Key = tuple[int, ...]
P = TypeVar("P")

_QOS_ORDER: Final = (QosClass.LSE, QosClass.LSR)


def tightness(strategy: NumaAllocateStrategy) -> int:
    """
    The sign with which free amounts are compared: ``MostAllocated`` fills the fullest place first, everything else the emptiest.

    As Koordinator's accumulator, where ``DistributeEvenly`` is no different from ``LeastAllocated``.
    """
    return 1 if strategy is NumaAllocateStrategy.MOST_ALLOCATED else -1


def numa_key(sign: int, usable: int, free_in_socket: int, numa: int) -> Key:
    """NUMA nodes: by what they offer, then by their socket, then by id."""
    return (sign * usable, sign * free_in_socket, numa)


def socket_key(sign: int, usable: int, socket: int) -> Key:
    """Sockets: by what they offer, then by id."""
    return (sign * usable, socket)


def neighbourhood_key(sign: int, taken_in_socket: int, free_in_socket: int, free_in_numa: int) -> Key:
    """Where to look for scattered CPUs: near those taken already, then by the socket's and the NUMA node's free CPUs."""
    return (-taken_in_socket, sign * free_in_socket, sign * free_in_numa)


def node_key(score: int, node: str) -> tuple[int, str]:
    """Nodes that fit: the highest score first, then by name. kube-scheduler's ``selectHost`` draws lots between equal scores."""
    return (-score, node)


def importance(pod: Pod) -> tuple[int, float, str, str]:
    """Sort key: the most important first. Higher priority, then older, then by name and uid."""
    return (-pod.request.priority, pod.created, str(pod.key), pod.key.uid)


def reallocation_order(
    qos: QosClass, *, required: bool, count: int, created: float, uid: str
) -> tuple[int | float | str, ...]:
    """Pods that a rebind moves: QoS, then required policies, then size (larger first), then age (older first), then uid."""
    rank = _QOS_ORDER.index(qos) if qos in _QOS_ORDER else len(_QOS_ORDER)
    return (rank, 0 if required else 1, -count, created, uid)


def repacking_order(count: int, order: tuple[int | float | str, ...], index: int) -> tuple[object, ...]:
    """Pods that a rebind places again: larger ones first, then in their order of reallocation, then by position."""
    return (-count, order, index)


def candidate_order(
    price: P, *, is_waited_for: bool, is_aligned: bool, latest_start: float, node: str
) -> tuple[P, bool, bool, float, str]:
    """
    Nodes that preemption could free: the cheapest by ``eviction_cost``, then one that is free at once before one to be waited for, then
    an aligned placement, then the victims that started last, then by name. As kube-scheduler's ``pickOneNodeForPreemption``.
    """
    return (price, is_waited_for, not is_aligned, -latest_start, node)


def age_key(created: float, uid: str) -> tuple[float, str]:
    """Holders of the same CPUs: the older pod first (``created`` in seconds since the epoch), then by uid."""
    return (created, uid)


def ranks(keys: Mapping[int, Key]) -> dict[int, int]:
    """Replace keys by their rank: equal keys share one."""
    order = {key: rank for rank, key in enumerate(sorted(set(keys.values())))}
    return {name: order[key] for name, key in keys.items()}


def by_use(cpus: Iterable[int], references: Mapping[int, int]) -> list[int]:
    """CPUs that may be shared: the least used first, then by id."""
    return sorted(cpus, key=lambda cpu: (references.get(cpu, 0), cpu))


def emptiest_first(free: Mapping[int, int]) -> list[int]:
    """NUMA nodes by free CPUs, most first, then by id."""
    return sorted(free, key=lambda numa: (-free[numa], numa))


def fullest_first(free: Mapping[int, int]) -> list[int]:
    """Ids by free CPUs, fewest first, then by id: the kubelet's order at every level of its packed assignment."""
    return sorted(free, key=lambda place: (free[place], place))
