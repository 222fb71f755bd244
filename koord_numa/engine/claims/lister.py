"""
Cache of ResourceSlices, DeviceClasses and ResourceClaims, and of the devices in use.

A claim's devices are counted from the decision on. Until the API server has confirmed the allocation it is *assumed*. Then the object of
the response replaces it, and older watch events are ignored (assume cache of kube-scheduler). A claim therefore counts exactly once, in any
order of events.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from koord_numa.core.claims import (
    CPU_DRIVER,
    CPU_ID,
    ClassByResource,
    Device,
    DeviceTaintRule,
    Pool,
    ResourceSlice,
    Served,
    TaintRules,
    class_by_resource,
    cpus_of,
    gather_pools,
    is_cpu_device,
)
from koord_numa.core.cpuset import MAX_CPU, CpuSet
from koord_numa.core.objects.claims import (
    ALL_FEATURES,
    Allocation,
    Classes,
    DeviceClass,
    DeviceId,
    DeviceUsage,
    PoolId,
    ResourceClaim,
)
from koord_numa.core.objects.gangs import GangKey
from koord_numa.core.objects.node import Node
from koord_numa.core.value_objects import ValueObject
from koord_numa.ports import DELETED, Conflict

if TYPE_CHECKING:
    from asyncio import Future

Revision = tuple[int, int]
_Key = TypeVar("_Key", PoolId, tuple[str | None, str | None], str)


SPARE: Final = 1024
"""Number of nodes without slices whose revisions are kept before a sweep."""


class SliceIndex:
    """
    Index of ResourceSlices.

    ``revision`` of a node changes with everything that may affect its devices, including their usage (``touch_pools``). Its pools are
    gathered again only when slices change.
    """

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}
        self._by_pool: dict[PoolId, dict[str, ResourceSlice]] = {}
        # By driver or pool name only, and by the names of their devices: the selectors of taint rules.
        self._by_part: dict[tuple[str | None, str | None], dict[str, ResourceSlice]] = {}
        self._by_device: dict[str, dict[str, ResourceSlice]] = {}
        self._by_node: dict[str, dict[str, ResourceSlice]] = {}  # slices that name a node, by node
        self._wide: dict[str, ResourceSlice] = {}  # all other slices
        self._revision = 0
        self._revisions: dict[str, int] = {}
        self._shape = 0  # incremented with changes of slices that name no node
        self._shapes: dict[str, int] = {}  # the same by node, for slices that name a node
        self._pools: dict[str, tuple[Revision, Node, tuple[Pool, ...]]] = {}
        self._rules = TaintRules()

    def __iter__(self) -> Iterator[ResourceSlice]:
        """Iterate over all published slices, without the taints of rules, unordered."""
        return iter(self._slices.values())

    def revision(self, node: str) -> Revision:
        """Return a revision that changes when devices of the node or their usage may have changed."""
        return self._revision, self._revisions.get(node, 0)

    def publishes(self, node: str, driver: str) -> bool:
        """Return whether a slice of the driver names the node."""
        return any(each.pool.driver == driver for each in self._by_node.get(node, {}).values())

    def pools_of(self, node: Node) -> tuple[Pool, ...]:
        """Return the pools accessible from the node. Counters of other nodes' pools are omitted, because they do not affect this node."""
        shape = (self._shape, self._shapes.get(node.name, 0))
        known = self._pools.get(node.name)
        if known is not None and known[0] == shape and known[1] is node:
            return known[2]
        own = self._by_node.get(node.name, {})
        # Slices that name no node are matched by their selectors; the others are found by node name.
        reached = {each.pool for each in self._wide.values() if each.reaches(node.name, node.labels)}
        reached.update(each.pool for each in own.values())
        # All slices of a pool: its generation and count decide whether it is complete.
        by_pool = {pool: [*map(self._rules.tainted, self._by_pool[pool].values())] for pool in sorted(reached)}
        slices = [each for published in by_pool.values() for each in published]
        pools = gather_pools(slices, node.name, node.labels, by_pool)
        self._pools[node.name] = (shape, node, pools)
        return pools

    def device(self, device: DeviceId) -> Device | None:
        """Return a device as its driver publishes it, of the newest generation."""
        slices = self._by_pool.get(PoolId(device.driver, device.pool), {}).values()
        found = [(each.generation, it) for each in slices for it in each.devices if it.id == device]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def put(self, each: ResourceSlice) -> ResourceSlice | None:
        """Add or change a slice and return its former version."""
        former = self._take(each.name)
        self._add(each)
        self._changed(former, each)
        return former

    def remove(self, each: ResourceSlice) -> ResourceSlice | None:
        """Remove a slice and return its last version."""
        former = self._take(each.name)
        self._rules.forget_slices((each.name,))
        self._changed(former, each)
        return former

    def replace(self, slices: Iterable[ResourceSlice]) -> None:
        """Replace the slices by this complete list."""
        self._rules.forget_slices(self._slices)
        for index in (self._slices, self._by_pool, self._by_part, self._by_device, self._by_node, self._wide):
            index.clear()
        for each in slices:
            self._add(each)
        self.everything_changed()
        # Slices that name no node may have changed, so that the pools of all nodes are outdated.
        self._shape += 1

    def put_rule(self, rule: DeviceTaintRule) -> bool:
        """Add or change a taint rule. Return whether it may change devices."""
        former = self._rules.put(rule)
        if former == rule:
            return False
        # Both: devices that only the former version selects lose the taint.
        before = former is not None and self._touch_rule(former)
        return self._touch_rule(rule) or before

    def remove_rule(self, name: str) -> bool:
        """Delete a taint rule. Return whether that changes devices."""
        former = self._rules.remove(name)
        return former is not None and self._touch_rule(former)

    def replace_rules(self, rules: Iterable[DeviceTaintRule]) -> bool:
        """Set all taint rules. Return whether that changes devices."""
        found = {rule.name: rule for rule in rules}
        removed = [self.remove_rule(rule.name) for rule in list(self._rules) if rule.name not in found]
        added = [self.put_rule(rule) for rule in found.values()]
        return any(removed + added)

    def _touch_rule(self, rule: DeviceTaintRule) -> bool:
        """Invalidate the nodes of all slices that the rule taints. Return whether there are any."""
        touched = self._slices_of_rule(rule) if rule.selects else []
        self._touch(touched)
        self._reshape(touched)
        return bool(touched)

    def _slices_of_rule(self, rule: DeviceTaintRule) -> list[ResourceSlice]:
        """Return the slices with devices that the rule selects, from the smallest index that has them all."""
        by_device: dict[str, ResourceSlice] | None = None
        if rule.device is not None:
            by_device = self._by_device.get(rule.device, {})
        if rule.driver is not None and rule.pool is not None:
            found = self._by_pool.get(PoolId(rule.driver, rule.pool), {})
        elif rule.driver is not None or rule.pool is not None:
            found = self._by_part.get((rule.driver, rule.pool), {})
        else:
            found = self._slices
        if by_device is None:
            return list(found.values())
        smaller, larger = sorted((by_device, found), key=len)
        return [each for name, each in smaller.items() if name in larger]

    def forget_node(self, node: str) -> None:
        """Remove the cached pools of a deleted node."""
        self._pools.pop(node, None)

    def everything_changed(self) -> None:
        """Invalidate the revisions of all nodes."""
        self._revision += 1

    def touch_pools(self, pools: Iterable[PoolId]) -> None:
        """Record that the usage of devices of these pools changed."""
        for pool in pools:
            self._touch(self._by_pool.get(pool, {}).values())

    def _changed(self, former: ResourceSlice | None, each: ResourceSlice) -> None:
        # Including the other slices of the pool: the new slice may complete or contradict it.
        concerned = [it for it in (former, each) if it is not None] + list(self._by_pool.get(each.pool, {}).values())
        self._touch(concerned)
        self._reshape(concerned)

    def _reshape(self, slices: Iterable[ResourceSlice]) -> None:
        """Invalidate the pools of the nodes that can access the slices."""
        for it in slices:
            if it.nodes.name and not it.per_device:
                self._shapes[it.nodes.name] = self._shapes.get(it.nodes.name, 0) + 1
            else:
                self._shape += 1
        if max(len(self._shapes), len(self._revisions)) > 2 * len(self._by_node) + SPARE:
            # Drop the counters by node, whose number is not bounded. The global counters are incremented instead.
            self._shapes.clear()
            self._revisions.clear()
            self._shape += 1
            self._revision += 1

    def _touch(self, slices: Iterable[ResourceSlice]) -> None:
        for each in slices:
            if each.nodes.name and not each.per_device:
                self._revisions[each.nodes.name] = self._revisions.get(each.nodes.name, 0) + 1
            else:
                # A slice that names no node may affect all nodes.
                self._revision += 1

    def _add(self, each: ResourceSlice) -> None:
        self._slices[each.name] = each
        self._by_pool.setdefault(each.pool, {})[each.name] = each
        for part in ((each.pool.driver, None), (None, each.pool.name)):
            self._by_part.setdefault(part, {})[each.name] = each
        for device in each.devices:
            self._by_device.setdefault(device.id.device, {})[each.name] = each
        if each.nodes.name and not each.per_device:
            self._by_node.setdefault(each.nodes.name, {})[each.name] = each
        else:
            self._wide[each.name] = each

    def _take(self, name: str) -> ResourceSlice | None:
        former = self._slices.pop(name, None)
        if former is not None:
            # A slice is in one of the two indexes; the other removal has no effect.
            self._wide.pop(name, None)
            _discard(self._by_pool, former.pool, name)
            for part in ((former.pool.driver, None), (None, former.pool.name)):
                _discard(self._by_part, part, name)
            for device in former.devices:
                _discard(self._by_device, device.id.device, name)
            _discard(self._by_node, former.nodes.name, name)
        return former


def _discard(index: dict[_Key, dict[str, ResourceSlice]], key: _Key, name: str) -> None:
    kept = index.get(key)
    if kept is not None:
        kept.pop(name, None)
        if not kept:
            del index[key]


ClaimKey = tuple[str, str]
"""Namespace and name."""


class ExtendedClaims:
    """Claims for extended resources of pods, and the classes that serve such resources. Owned by ``ClaimLister``."""

    def __init__(self) -> None:
        self._classes: ClassByResource = {}
        self._by_pod: dict[str, dict[ClaimKey, ResourceClaim]] = {}

    def replace_classes(self, classes: Classes) -> None:
        """Replace the DeviceClasses by this complete list."""
        self._classes = class_by_resource(classes)

    def served(self, resources: Iterable[str]) -> Served:
        """Return the resources that a class serves, with the class."""
        return tuple((name, self._classes[name]) for name in resources if name in self._classes)

    def of(self, pod: str) -> ResourceClaim | None:
        """
        Return the claim for a pod by the pod's UID (dynamicresources ``findExtendedResourceClaim``).

        If two schedulers created claims, the claim with devices is returned, which nothing else would release.
        """
        found = self._by_pod.get(pod)
        if not found:
            return None
        return min(found.values(), key=lambda it: (it.deleting, it.allocation is None, it.name))

    def put(self, claim: ResourceClaim) -> None:
        """Add or update a claim. Claims that are not for extended resources of a pod are ignored."""
        if claim.extended and claim.owner:
            self._by_pod.setdefault(claim.owner, {})[claim.namespace, claim.name] = claim

    def drop(self, claim: ResourceClaim) -> None:
        """Remove a claim."""
        claims = self._by_pod.get(claim.owner, {})
        if claims.pop((claim.namespace, claim.name), None) is not None and not claims:
            del self._by_pod[claim.owner]


class NextChange:
    """Notification for any number of tasks: each ``tell`` wakes all tasks that wait at this moment."""

    def __init__(self) -> None:
        self._waiters: set[Future[None]] = set()

    async def wait(self) -> None:
        """Return after the next ``tell``."""
        import asyncio  # noqa: PLC0415  (loaded by everything that runs a scheduler, and by no other command)

        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def tell(self) -> None:
        """Wake all waiting tasks."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class AssumedClaim(ValueObject):
    """Allocation that was decided for a pod and is not written yet. Pods of the same group, if the pod has a gang, share it."""

    allocation: Allocation
    pod: str  # UID
    gang: GangKey | None = None


OnChange = Callable[[], None]
OnClaim = Callable[[ClaimKey | None], None]
"""Called with the changed claim; ``None`` when all claims may be affected."""

OnCpus = Callable[[str, bool], None]
"""Called with a node and whether the driver dra.cpu publishes its CPUs."""


class ClaimLister:
    """
    Level-based cache of claims and devices.

    ``on_change`` is called when devices may have become available, ``on_claim`` for every changed claim. ``enabled`` is false where claims
    are disabled or not served.
    """

    def __init__(self, on_change: OnChange, on_claim: OnClaim, on_cpus: OnCpus = lambda _node, _by_claim: None) -> None:
        self._on_change = on_change
        self._on_cpus = on_cpus
        self._tell_claim = on_claim
        self._changes = NextChange()
        self.enabled = True
        self._synced = False
        self._may_lag = False
        self.classes: dict[str, DeviceClass] = {}
        self.claims: dict[ClaimKey, ResourceClaim] = {}
        self.assumed: dict[str, AssumedClaim] = {}  # by UID of the claim
        self.extended = ExtendedClaims()
        self.usage = DeviceUsage()
        self.features = ALL_FEATURES
        self._cpus: dict[str, list[CpuSet]] = {}  # cpusets of dra.cpu's claims, by pool
        self._reserved: dict[str, dict[ClaimKey, ResourceClaim]] = {}  # by UID of the pods that claims are reserved for
        self._kept: dict[str, tuple[Allocation, ...]] = {}  # devices that are being freed for a pod, by its UID
        self._index = SliceIndex()

    # Reads by decisions.

    @property
    def known(self) -> bool:
        """True if everything is known that a decision about devices needs."""
        return self._synced and not self._may_lag

    @property
    def serves_extended(self) -> bool:
        """True if extended resources are served by claim. False until the first list is complete."""
        return self.enabled and self.features.extended_resource and self._synced

    def made_for(self, pod: str) -> ResourceClaim | None:
        """Return the claim for the extended resources of a pod, by its UID; ``None`` where the feature gate is off."""
        return self.extended.of(pod) if self.features.extended_resource else None

    @property
    def unserved_classes(self) -> Classes:
        """Classes whose extended resources are not served by claim: all classes where the feature gate is off."""
        return {} if self.features.extended_resource else self.classes

    def revision(self, node: str) -> Revision:
        """Return a revision that changes when devices of the node or their usage may have changed."""
        return self._index.revision(node)

    def pools_of(self, node: Node) -> tuple[Pool, ...]:
        """Return the pools that are accessible from the node."""
        return self._index.pools_of(node)

    def forget_node(self, node: str) -> None:
        """Remove the cached pools of a deleted node."""
        self._index.forget_node(node)

    def cpus_held(self, pool: str) -> CpuSet:
        """Return the CPUs that claims hold by the driver dra.cpu, whose pools are named after their nodes."""
        return CpuSet.of(cpu for cpus in self._cpus.get(pool, ()) for cpu in cpus)

    def claim(self, key: ClaimKey) -> ResourceClaim | None:
        """Return the claim as last observed or written."""
        return self.claims.get(key)

    def shows(self, claim: ResourceClaim) -> bool:
        """Return whether this claim is known. Raises ``Conflict`` when a newer claim has its name."""
        known = self.claims.get((claim.namespace, claim.name))
        if known is not None and known.uid != claim.uid and claim.is_older_than(known):
            raise Conflict(f"claim {claim} was deleted and created again meanwhile")
        return known is not None and known.uid == claim.uid

    def slices(self) -> Iterator[ResourceSlice]:
        """Return an iterator over all slices, unordered."""
        return iter(self._index)

    def cpus_of(self, allocation: Allocation) -> CpuSet:
        """Return the CPUs that an allocation holds by dra.cpu, by cpuset or as individual CPUs; empty where the driver chooses them."""
        found = (self._index.device(it.device) for it in allocation.results if is_cpu_device(it.device))
        ids = (device.attribute(CPU_ID) for device in found if device is not None)
        single = CpuSet.of(
            it.scalar for it in ids if it is not None and isinstance(it.scalar, int) and 0 <= it.scalar < MAX_CPU
        )
        return cpus_of(allocation) | single

    def takes_resources(self, device: DeviceId) -> bool:
        """Return whether the device takes CPUs, memory or huge pages of the node (KEP-5517)."""
        found = self._index.device(device)
        return found is not None and bool(found.allocatable)

    def is_mapped(self, device: DeviceId) -> bool:
        """Return whether the device maps to resources of the node, in addition to overhead of its use."""
        found = self._index.device(device)
        return found is not None and any(each.multiplier is not None for each in found.allocatable)

    @property
    def consumers(self) -> Iterable[str]:
        """UIDs of the pods that claims are reserved for."""
        return self._reserved

    def reserved_for(self, pod: str) -> Iterable[ResourceClaim]:
        """Return the claims that are reserved for a pod, by its uid."""
        return self._reserved.get(pod, {}).values()

    def kept_for(self, pod: str) -> tuple[Allocation, ...]:
        """Return the devices that are being freed for a pod, by its uid."""
        return self._kept.get(pod, ())

    @contextmanager
    def set_aside(self, allocations: Iterable[Allocation], taken: Sequence[Allocation] = ()) -> Iterator[None]:
        """Treat these devices as free, and the devices ``taken`` as used, within the block, which must not contain ``await``."""
        changes = [*((allocation, -1) for allocation in allocations), *((allocation, 1) for allocation in taken)]
        for allocation, sign in changes:
            self._account(allocation, sign)
        try:
            yield
        finally:
            for allocation, sign in changes:
                self._account(allocation, -sign)

    def count_tentatively(self, allocation: Allocation, sign: int) -> None:
        """Count devices as in use (1), or no more (-1), within one turn of the event loop. Nothing is reported."""
        self._account(allocation, sign)
        self._index.touch_pools({PoolId(it.device.driver, it.device.pool) for it in allocation.results})

    async def change(self) -> None:
        """Return after the next change of any claim."""
        await self._changes.wait()

    # Changes by cycles.

    def assume(self, claim: ResourceClaim, allocation: Allocation, pod: str, gang: GangKey | None = None) -> None:
        """Count these devices as in use by the claim."""
        self.assumed[claim.uid] = AssumedClaim(allocation, pod, gang)
        # Assumed and counted in one turn of the event loop: no decision runs in between.
        self._count(allocation, 1)
        self._on_claim((claim.namespace, claim.name))

    def assume_created(self, in_memory: ResourceClaim, claim: ResourceClaim) -> None:
        """Move the assumption of an in-memory claim to the claim that was created for it."""
        if (assumed := self.assumed.pop(in_memory.uid, None)) is not None:
            self.assumed[claim.uid] = assumed

    def forget_assumed(self, claim: ResourceClaim, pod: str) -> None:
        """Drop the assumption for a pod (UID) whose decision failed. Does nothing if the claim is not assumed for it."""
        assumed = self.assumed.get(claim.uid)
        if assumed is not None and assumed.pod == pod:
            del self.assumed[claim.uid]
            self._count(assumed.allocation, -1)
            self._on_claim((claim.namespace, claim.name))
            self._on_change()

    def keep(self, pod: str, allocations: tuple[Allocation, ...]) -> None:
        """Count devices that are being freed for a pod as in use, in addition to their present users."""
        self.end_keeping(pod)
        if allocations:
            self._kept[pod] = allocations
            for allocation in allocations:
                self._count(allocation, 1)

    def end_keeping(self, pod: str) -> None:
        """Stop reserving devices for the pod. Does nothing if none are reserved."""
        kept = self._kept.pop(pod, ())
        for allocation in kept:
            self._count(allocation, -1)
        if kept:
            self._on_change()

    # Events: claims.

    def observe_claim(self, event: str | None, claim: ResourceClaim) -> None:
        """Process a ResourceClaim from a watch or from the response to a write."""
        key = (claim.namespace, claim.name)
        known = self.claims.get(key)
        if event == DELETED:
            # A claim of the same name may already exist with another UID.
            if known is not None and known.uid == claim.uid:
                self._drop(known)
            return
        # The own write was processed already: the watch still shows an older version.
        if known is not None and known.uid == claim.uid and claim.is_older_than(known):
            return
        freed = self._replace(known, claim)
        self._on_claim(key)
        if freed:
            self._on_change()

    def observe_written(self, claim: ResourceClaim) -> None:
        """
        Process the response to a write. It is ignored if the watch has reported the deletion before.

        The assume cache of kube-scheduler also accepts only objects that its informer knows.
        """
        known = self.claims.get((claim.namespace, claim.name))
        # Unknown if the watch has reported its deletion.
        if known is not None and known.uid == claim.uid:
            self.observe_claim(None, claim)

    def replace_claims(self, claims: Iterable[ResourceClaim]) -> None:
        """Replace the ResourceClaims by this complete list."""
        found = {(claim.namespace, claim.name): claim for claim in claims}
        for key, known in list(self.claims.items()):
            if key not in found:
                self._drop(known)
        for claim in found.values():
            self.observe_claim(None, claim)

    def _on_claim(self, key: ClaimKey | None) -> None:
        self._changes.tell()
        self._tell_claim(key)

    def _replace(self, known: ResourceClaim | None, claim: ResourceClaim) -> bool:
        """Store the new object and return whether devices may have become free."""
        # Another UID is another claim: the devices of the former claim are free.
        if known is not None and known.uid != claim.uid:
            self._drop(known)
            known = None
        self._note_consumers(known, claim)
        self.claims[claim.namespace, claim.name] = claim
        self.extended.put(claim)
        former = None if known is None else known.allocation
        # The written allocation replaces the assumed allocation: devices count once.
        freed = False
        if claim.allocation is not None and (assumed := self.assumed.pop(claim.uid, None)) is not None:
            self._count(assumed.allocation, -1)
            freed = assumed.allocation.results != claim.allocation.results  # another scheduler allocated it first
        if former == claim.allocation:
            return freed
        if former is not None:
            self._count(former, -1)
        if claim.allocation is not None:
            self._count(claim.allocation, 1)
        return freed or former is not None

    def _drop(self, claim: ResourceClaim) -> None:
        key = (claim.namespace, claim.name)
        self.claims.pop(key, None)
        self._note_consumers(claim, None)
        self.extended.drop(claim)
        assumed = self.assumed.pop(claim.uid, None)
        for allocation in (claim.allocation, None if assumed is None else assumed.allocation):
            if allocation is not None:
                self._count(allocation, -1)
        self._on_claim(key)
        self._on_change()

    def _note_consumers(self, former: ResourceClaim | None, claim: ResourceClaim | None) -> None:
        for it in () if former is None else (former,):
            for uid in it.reserved_for:
                claims = self._reserved.get(uid, {})
                claims.pop((it.namespace, it.name), None)
                if not claims:
                    self._reserved.pop(uid, None)
        for it in () if claim is None else (claim,):
            for uid in it.reserved_for:
                self._reserved.setdefault(uid, {})[it.namespace, it.name] = it

    def _account(self, allocation: Allocation, sign: int) -> str | None:
        """Add the devices and CPUs to those in use, or remove them. Return the pool of dra.cpu."""
        (self.usage.add if sign > 0 else self.usage.remove)(allocation)
        # Pools of dra.cpu are named after their nodes.
        pool = next((it.device.pool for it in allocation.results if is_cpu_device(it.device)), None)
        if pool is not None:
            # Empty where the driver allocates the CPUs: the claim counts nevertheless.
            cpus = cpus_of(allocation)
            held = self._cpus.setdefault(pool, [])
            if sign > 0:
                held.append(cpus)
            else:
                held.remove(cpus)
        return pool

    def _count(self, allocation: Allocation, sign: int) -> None:
        pool = self._account(allocation, sign)
        # First or last CPUs of a pool: only then the value for the node changes.
        if pool is not None and len(self._cpus[pool]) == (sign > 0):
            self._tell_cpus(pool)
        self._index.touch_pools({PoolId(it.device.driver, it.device.pool) for it in allocation.results})

    # Events: slices and classes.

    def observe_slice(self, event: str | None, each: ResourceSlice) -> None:
        """Process an added, changed or deleted ResourceSlice."""
        former = self._index.remove(each) if event == DELETED else self._index.put(each)
        # The former slice may have named another node.
        for it in (each, former):
            if it is not None and it.pool.driver == CPU_DRIVER and it.nodes.name:
                self._tell_cpus(it.nodes.name)
        self._on_change()

    def replace_slices(self, slices: Iterable[ResourceSlice]) -> None:
        """Replace the ResourceSlices by this complete list."""
        former = self._nodes_with_cpus()
        self._index.replace(slices)
        for node in former | self._nodes_with_cpus():
            self._tell_cpus(node)
        self._on_change()

    def _nodes_with_cpus(self) -> set[str]:
        return {each.nodes.name for each in self._index if each.pool.driver == CPU_DRIVER and each.nodes.name}

    def _tell_cpus(self, node: str) -> None:
        """Report whether the CPUs of a node are allocated by claim: a driver publishes them, or a claim holds some."""
        self._on_cpus(node, bool(self._cpus.get(node)) or self._index.publishes(node, CPU_DRIVER))

    def observe_taint_rule(self, event: str | None, rule: DeviceTaintRule) -> None:
        """Process an added, changed or deleted DeviceTaintRule. The cost is proportional to the affected slices."""
        if self._index.remove_rule(rule.name) if event == DELETED else self._index.put_rule(rule):
            self._on_change()

    def replace_taint_rules(self, rules: Iterable[DeviceTaintRule]) -> None:
        """Replace the DeviceTaintRules by this complete list."""
        if self._index.replace_rules(rules):
            self._on_change()

    def observe_class(self, event: str | None, device_class: DeviceClass) -> None:
        """Process an added, changed or deleted DeviceClass."""
        self.classes.pop(device_class.name, None)
        if event != DELETED:
            self.classes[device_class.name] = device_class
        self._classes_changed()

    def replace_classes(self, classes: Iterable[DeviceClass]) -> None:
        """Replace the DeviceClasses by this complete list."""
        self.classes = {each.name: each for each in classes}
        self._classes_changed()

    def synced(self) -> None:
        """Mark all kinds as listed."""
        self._synced = True
        self._on_claim(None)
        self._on_change()

    def lags(self, may_lag: bool) -> None:
        """
        Set whether claims written by another process, such as a former leader, may be missing. Pods with claims wait meanwhile.

        Two claims with the same device do not conflict in the API server, so that no write would detect the conflict.
        """
        self._may_lag = may_lag
        self._on_claim(None)
        self._on_change()

    def _classes_changed(self) -> None:
        self.extended.replace_classes(self.classes)
        self._index.everything_changed()
        self._on_claim(None)
        self._on_change()
