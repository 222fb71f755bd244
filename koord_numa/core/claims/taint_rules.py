"""DeviceTaintRules: taints that administrators put on published devices, as if they stood in the ResourceSlice."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from koord_numa.core.claims.search.inventory import DeviceTaint, ResourceSlice
from koord_numa.core.value_objects import replace


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """
    A taint for the devices that match driver, pool and device name; None matches every one (resource/v1 ``DeviceTaintSelector``).

    ``selects`` is false for a rule without a selector, which taints no device.
    """

    name: str
    taint: DeviceTaint
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    selects: bool = True


class TaintRules:
    """All rules of the cluster, by driver and pool, and the slices that they change, made once."""

    def __init__(self) -> None:
        self._rules: dict[str, DeviceTaintRule] = {}
        self._by_pool: dict[tuple[str | None, str | None], dict[str, DeviceTaintRule]] = {}
        self._tainted: dict[str, tuple[ResourceSlice, tuple[DeviceTaintRule, ...], ResourceSlice]] = {}

    def __iter__(self) -> Iterator[DeviceTaintRule]:
        """Every rule."""
        return iter(self._rules.values())

    def put(self, rule: DeviceTaintRule) -> DeviceTaintRule | None:
        """Add or change a rule. Return the former rule of the name."""
        former = self.remove(rule.name)
        self._rules[rule.name] = rule
        if rule.selects:
            self._by_pool.setdefault((rule.driver, rule.pool), {})[rule.name] = rule
        return former

    def remove(self, name: str) -> DeviceTaintRule | None:
        """Delete a rule. Return the rule, if there was one."""
        rule = self._rules.pop(name, None)
        if rule is not None and rule.selects:
            key = (rule.driver, rule.pool)
            del self._by_pool[key][name]
            if not self._by_pool[key]:
                del self._by_pool[key]
        return rule

    def forget_slices(self, names: Iterable[str]) -> None:
        """Forget slices that are gone."""
        for name in names:
            self._tainted.pop(name, None)

    def tainted(self, published: ResourceSlice) -> ResourceSlice:
        """Return the slice with the taints of all rules for its devices, after the taints that the driver publishes."""
        if not self._by_pool:
            return published
        rules = self._rules_of(published)
        if not rules:
            return published
        known = self._tainted.get(published.name)
        if known is not None and known[0] is published and known[1] == rules:
            return known[2]
        devices = []
        for device in published.devices:
            taints = tuple(rule.taint for rule in rules if rule.device in (None, device.id.device))
            devices.append(replace(device, taints=device.taints + taints) if taints else device)
        # A rule for other devices of the driver or pool changes nothing here.
        same = all(device is former for device, former in zip(devices, published.devices, strict=True))
        changed = published if same else replace(published, devices=tuple(devices))
        self._tainted[published.name] = (published, rules, changed)
        return changed

    def _rules_of(self, published: ResourceSlice) -> tuple[DeviceTaintRule, ...]:
        """Return the rules that can concern devices of the slice, by name."""
        driver, pool = published.pool
        found = [rule for key in product((driver, None), (pool, None)) for rule in self._by_pool.get(key, {}).values()]
        return tuple(sorted(found, key=lambda rule: rule.name))
