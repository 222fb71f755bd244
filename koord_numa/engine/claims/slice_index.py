"""ResourceSlices by pool and by node, and the accessible pools of a node, cached until their slices change."""

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from koord_numa.core.claims.inventory import Device, DeviceId, DeviceTaintRule, PoolId, ResourceSlice, TaintRules
from koord_numa.core.claims.pools import Pool, gather_pools
from koord_numa.core.objects.node import Node

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
            self._sweep()

    def _sweep(self) -> None:
        """Drop the counters by node, whose number is not bounded. The global counters are incremented instead."""
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
