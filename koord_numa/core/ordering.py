"""
All tie-breaks of the core: the order of equally good nodes, pods, domains, cores and CPUs.

Keys end with a unique id, so that no result depends on the order of inputs. Keys only compare.
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
    Return the sign for comparisons of free amounts: ``MostAllocated`` fills the fullest first, all others the emptiest.

    As Koordinator's accumulator, where ``DistributeEvenly`` equals ``LeastAllocated``.
    """
    return 1 if strategy is NumaAllocateStrategy.MOST_ALLOCATED else -1


def numa_key(sign: int, usable: int, free_in_socket: int, numa: int) -> Key:
    """Return the key of a NUMA node: by offer, then by socket, then by id."""
    return (sign * usable, sign * free_in_socket, numa)


def socket_key(sign: int, usable: int, socket: int) -> Key:
    """Return the key of a socket: by offer, then by id."""
    return (sign * usable, socket)


def neighbourhood_key(sign: int, taken_in_socket: int, free_in_socket: int, free_in_numa: int) -> Key:
    """Return the key for scattered CPUs: near taken CPUs first, then by the free CPUs of socket and NUMA node."""
    return (-taken_in_socket, sign * free_in_socket, sign * free_in_numa)


def node_key(score: int, node: str) -> tuple[int, str]:
    """Return the key of a fitting node: highest score first, then by name. kube-scheduler's ``selectHost`` chooses at random."""
    return (-score, node)


def importance(pod: Pod) -> tuple[int, float, str, str]:
    """Return the key of a pod, most important first: higher priority, then older, then by name and UID."""
    return (-pod.request.priority, pod.created, str(pod.key), pod.key.uid)


def reallocation_order(
    qos: QosClass, *, required: bool, count: int, created: float, uid: str
) -> tuple[int | float | str, ...]:
    """Return the key of a pod to rebind: QoS, required policies, size (larger first), age (older first), UID."""
    rank = _QOS_ORDER.index(qos) if qos in _QOS_ORDER else len(_QOS_ORDER)
    return (rank, 0 if required else 1, -count, created, uid)


def repacking_order(count: int, order: tuple[int | float | str, ...], index: int) -> tuple[object, ...]:
    """Return the key of a pod that a rebind places again: larger first, then in reallocation order, then by position."""
    return (-count, order, index)


def candidate_order(
    price: P, *, is_waited_for: bool, is_aligned: bool, latest_start: float, node: str
) -> tuple[P, bool, bool, float, str]:
    """
    Return the key of a node for preemption.

    The node with the lowest ``price`` (``victims.price``) comes first, then a node without waiting, then an aligned placement, then the
    victims that started last, then by name. As kube-scheduler's ``pickOneNodeForPreemption``.
    """
    return (price, is_waited_for, not is_aligned, -latest_start, node)


def age_key(created: float, uid: str) -> tuple[float, str]:
    """Return the key of a holder of CPUs: older first (``created`` in seconds since the epoch), then by UID."""
    return (created, uid)


def ranks(keys: Mapping[int, Key]) -> dict[int, int]:
    """Replace keys by their rank. Equal keys share a rank."""
    order = {key: rank for rank, key in enumerate(sorted(set(keys.values())))}
    return {name: order[key] for name, key in keys.items()}


def by_use(cpus: Iterable[int], references: Mapping[int, int]) -> list[int]:
    """Return CPUs that may be shared, the least used first, then by id."""
    return sorted(cpus, key=lambda cpu: (references.get(cpu, 0), cpu))


def emptiest_first(free: Mapping[int, int]) -> list[int]:
    """Return NUMA nodes by free CPUs, most first, then by id."""
    return sorted(free, key=lambda numa: (-free[numa], numa))


def fullest_first(free: Mapping[int, int]) -> list[int]:
    """Return ids by free CPUs, fewest first, then by id, as the kubelet at every level of its packed assignment."""
    return sorted(free, key=lambda place: (free[place], place))
