"""
Moves of single pods that gather free devices: "moving pod P to T frees 4 nvidia.com/gpu on node N".

A block is ``BLOCK`` free devices of a NUMA node, or of the node where NUMA nodes publish no devices. A move is reported if it adds a block
on the pod's node, takes none from the target, and the target accepts the pod now. Moves are advice. The pod is evicted only under
``deviceMoves.evict``, and only while a waiting pod needs the block.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from logging import getLogger
from typing import Final

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import ResourceList
from koord_numa.core.score.node_scores import is_device
from koord_numa.core.state.numa_free import rooms
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.containment import Subject
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import ClusterError
from koord_numa.settings import DeviceMoveSettings

log = getLogger(__name__)

BLOCK: Final = 4
"""Devices: half of a usual machine with 8 devices; these share a socket."""

HOUR: Final = 3600.0

DAY: Final = 24 * HOUR
"""Period in which no second pod of the same owner is evicted from a node, because the replacement may return to it."""

MAX_MOVES: Final = 20
"""Maximum number of moves in a report. Users read it, and each move changes the value of the others."""

MAX_PODS: Final = 8
"""Maximum number of pods that are tried on a node."""

MAX_TARGETS: Final = 4
"""Maximum number of target nodes that are tried for a pod. An attempt takes about a millisecond."""

SLICE: Final = 4
"""Nodes that are evaluated before other tasks run: at most about 40 ms, usually below 1 ms."""


class DeviceMove(ValueObject):
    """Move of ``pod`` from ``node`` to ``target``, which adds a block of ``freed`` devices of ``resource`` on ``node``."""

    pod: Pod
    node: str
    target: str
    resource: str
    freed: int

    @property
    def text(self) -> str:
        """Description for users."""
        return f"moving pod {self.pod.key} to {self.target} frees {self.freed} {self.resource} on node {self.node}"


class FreeDeviceCounts(ValueObject):
    """Free devices of a resource on a node: by NUMA node, or under the key ``WHOLE`` for the node."""

    parts: Mapping[int, int]
    block: int

    @property
    def blocks(self) -> int:
        """Number of blocks that pods could get."""
        return sum(max(0, free) // self.block for free in self.parts.values())

    @property
    def free(self) -> int:
        """Number of all free devices."""
        return sum(max(0, free) for free in self.parts.values())

    def changed(self, amount: int, shares: Mapping[int, int], sign: int) -> "FreeDeviceCounts | None":
        """Return the devices after a pod has left (``sign`` 1) or arrived (-1). ``None`` if the pod's NUMA nodes are not known."""
        if WHOLE in self.parts:
            shares = {WHOLE: amount}
        if sum(shares.values()) != amount or not shares.keys() <= self.parts.keys():
            return None
        return FreeDeviceCounts(
            {part: free + sign * shares.get(part, 0) for part, free in self.parts.items()}, self.block
        )


WHOLE: Final = -1
"""Key for the whole node."""


def free_devices(info: NodeInfo, block: int = BLOCK) -> dict[str, FreeDeviceCounts]:
    """Return the free devices of a node by resource. Resources of which the node has less than a block are omitted."""
    names = [name for name, amount in info.allocatable.items() if amount >= block and is_device(name)]
    seen = info.candidate() if names else None
    if seen is None or seen.node.unschedulable:
        return {}
    usages = rooms(seen)
    devices = {}
    for name in names:
        left = info.allocatable[name] - info.ledger.amounts.get(name, 0)
        parts = {usage.numa: usage.free.get(name, 0) for usage in usages if usage.total.get(name, 0) > 0}
        devices[name] = FreeDeviceCounts(parts or {WHOLE: left}, block)
    return devices


def find_moves(scheduler: Scheduler, block: int = BLOCK) -> Iterator[DeviceMove | None]:
    """Yield at most one move per node and resource, in the order of names. ``None`` marks a node: other tasks may run in between."""
    devices: dict[str, dict[str, FreeDeviceCounts]] = {}
    nodes = scheduler.cache.nodes
    for name in sorted(nodes):
        info = nodes.get(name)  # the cache may change at every yield
        devices[name] = {} if info is None else free_devices(info, block)
        yield None
    for name in sorted(devices):
        yield None
        for resource, free in tuple(devices[name].items()):
            move = _move_from(scheduler, name, resource, free, devices)
            if move is not None:
                yield move
                # A node takes part in one move per resource: the report contains no pair of moves that exclude each
                # other.
                del devices[name][resource], devices[move.target][resource]


def _move_from(
    scheduler: Scheduler,
    name: str,
    resource: str,
    free: FreeDeviceCounts,
    devices: Mapping[str, Mapping[str, FreeDeviceCounts]],
) -> DeviceMove | None:
    info = scheduler.cache.nodes.get(name)
    if info is None:
        return None
    pods = [pod for pod in info.pods.values() if may_move(pod) and pod.key.uid not in scheduler.cache.assumed]
    tried = 0
    for pod in sorted(pods, key=lambda pod: (pod.request.priority, _amount(pod, resource), -pod.created, str(pod.key))):
        amount, holding = _amount(pod, resource), info.ledger.holdings.get(pod.key.uid)
        if not amount or holding is None:
            continue
        after = free.changed(amount, _shares(holding.numa, resource), 1)
        if after is None or after.blocks <= free.blocks:
            continue
        target = _target_of(scheduler, pod, resource, devices)
        if target:
            return DeviceMove(pod, name, target, resource, free.block)
        tried += 1
        if tried == MAX_PODS:
            break
    return None


def may_move(pod: Pod) -> bool:
    """Return whether the pod runs, its controller would recreate it elsewhere, and nothing binds it to its node."""
    tied = pod.mirror or pod.never_rebound or bool(pod.resource_claims) or bool(pod.extended_claim)
    return bool(pod.owner) and not tied and not pod.deleting and not pod.finished and not pod.problem


def _target_of(
    scheduler: Scheduler, pod: Pod, resource: str, devices: Mapping[str, Mapping[str, FreeDeviceCounts]]
) -> str:
    """Return the fullest other node that accepts the pod and keeps its blocks; empty if there is none."""
    amount = _amount(pod, resource)
    # The pod as its controller would recreate it.
    again = replace(pod, node="", assignment=None, phase="Pending", started=False, started_at=0.0)
    request_class = scheduler.classes.of(again)
    if request_class is None:
        return ""
    found = [
        (free.free, name)
        for name, offers in devices.items()
        if name != pod.node and (free := offers.get(resource)) is not None and free.free >= amount
    ]
    tried = 0
    for _, name in sorted(found):
        free = devices[name][resource]
        # A necessary condition: the devices outside of blocks hold the pod.
        if sum(max(0, part) % free.block for part in free.parts.values()) < amount:
            continue
        placement = scheduler.handle.selector.try_node(request_class, name, again)
        if isinstance(placement, Placement):
            after = free.changed(amount, _shares(placement.numa, resource), -1)
            # Where the kubelet chooses the NUMA node, the worst choice counts.
            blocks = after.blocks if after is not None else _worst_blocks(free, amount)
            if blocks >= free.blocks:
                return name
        tried += 1
        if tried == MAX_TARGETS:
            break
    return ""


def _worst_blocks(free: FreeDeviceCounts, amount: int) -> int:
    choices = [free.changed(amount, {part: amount}, -1) for part, left in free.parts.items() if left >= amount]
    return min((choice.blocks for choice in choices if choice is not None), default=-1)


def _amount(pod: Pod, resource: str) -> int:
    return effective_requests(pod.request).get(resource, 0)


def _shares(numa: tuple[tuple[int, ResourceList], ...], resource: str) -> dict[int, int]:
    return {number: amount for number, amounts in numa if (amount := amounts.get(resource, 0)) > 0}


class DeviceMoves:
    """Current report (``moves``), and evictions if they are allowed. Limits use the monotonic clock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._evicted: deque[float] = deque()  # times of the last hour
        self._owners: dict[tuple[str, str], float] = {}  # (node, owner) -> when a pod was evicted
        self.moves: tuple[DeviceMove, ...] = ()

    @property
    def settings(self) -> DeviceMoveSettings:
        """The configuration."""
        return self._scheduler.settings.device_moves

    async def run(self) -> None:
        """Refresh the report once per interval until cancelled."""
        while True:
            await self._scheduler.dependencies.sleep(self.settings.interval_seconds)
            with self._scheduler.handle.quarantine.contained(Subject("report", "device moves", "device moves")):
                await self.refresh()
            try:
                await self.evict()
            except ClusterError as error:
                # A budget forbids the eviction, or the server is unavailable: the next interval evaluates again.
                log.info("no pod was evicted to free devices: %s", error)

    async def refresh(self) -> None:
        """Evaluate every node. An incomplete report is never published."""
        moves: list[DeviceMove] = []
        seen = 0
        for move in find_moves(self._scheduler):
            seen += move is None
            if move is not None:
                moves.append(move)
                if len(moves) == MAX_MOVES:
                    break
            elif seen % SLICE == 0:
                await asyncio.sleep(0)
        self.moves = tuple(moves)
        self._scheduler.metrics.device_moves = len(moves)

    async def evict(self) -> DeviceMove | None:
        """Evict the pod of at most one move. The Eviction API respects PodDisruptionBudgets. Raises ``ClusterError``."""
        scheduler = self._scheduler
        now = scheduler.dependencies.clock()
        while self._evicted and self._evicted[0] <= now - HOUR:
            self._evicted.popleft()
        self._owners = {key: when for key, when in self._owners.items() if when > now - DAY}
        if (
            not self.settings.evict
            or not scheduler.ready
            or not scheduler.dependencies.lease.fresh()
            or len(self._evicted) >= self.settings.max_per_hour
        ):
            return None
        for move in self.moves:
            key = (move.node, move.pod.owner)
            if key in self._owners or not self._is_needed(move) or not self._still_holds(move):
                continue
            # Counted before the call: an eviction with an unknown outcome may have happened.
            self._evicted.append(now)
            self._owners[key] = now
            message = f"Evicted to free {move.freed} {move.resource} on node {move.node}"
            await scheduler.dependencies.binder.evict(move.pod.key, message)
            scheduler.dependencies.recorder.event(
                move.pod.key, warning=False, reason="DevicesGathered", message=message
            )
            scheduler.metrics.device_evictions += 1
            return move
        return None

    def _is_needed(self, move: DeviceMove) -> bool:
        """Return whether a waiting pod requests more devices than the moved pod, at most the block, and no node has a free block."""
        scheduler, least = self._scheduler, _amount(move.pod, move.resource)
        if not any(least < _amount(pod, move.resource) <= move.freed for pod in scheduler.waiting()):
            return False
        free = (free_devices(info).get(move.resource) for info in scheduler.cache.nodes.values())
        return not any(devices is not None and devices.blocks for devices in free)

    def _still_holds(self, move: DeviceMove) -> bool:
        """Evaluate the move again on the current state."""
        nodes = self._scheduler.cache.nodes
        devices = {name: free_devices(nodes[name]) for name in (move.node, move.target) if name in nodes}
        free = devices.get(move.node, {}).get(move.resource)
        if free is None:
            return False
        again = _move_from(self._scheduler, move.node, move.resource, free, devices)
        return again is not None and again.pod.key == move.pod.key
