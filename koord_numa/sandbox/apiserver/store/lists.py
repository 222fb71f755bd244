"""How lists inside objects merge: whole, as a set, or item by item; by table for built-in kinds, by schema for custom ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject

FieldNames = tuple[str, ...]  # a path without list positions: ("spec", "containers", "env")


@dataclass(frozen=True, slots=True)
class ListRule:
    """``keys`` name the fields that tell items apart; a set has none and merges by value; an atomic list is replaced."""

    keys: FieldNames = ()
    is_set: bool = False

    def identity(self, item: Any) -> tuple[Any, ...] | None:
        """What tells an item from the others, or ``None`` when it lacks a key."""
        if not isinstance(item, dict):
            return None
        found = tuple(item.get(key, _KEY_DEFAULTS.get(key)) for key in self.keys)
        return None if None in found else found


_KEY_DEFAULTS: Final = {"protocol": "TCP"}
ATOMIC: Final = ListRule()
SET: Final = ListRule(is_set=True)

ListRules = Callable[[FieldNames], ListRule]


def _by(*keys: str) -> ListRule:
    return ListRule(keys)


# patchMergeKey tags of k8s.io/api; the fields that are absent here (tolerations, taints) are atomic there.
_BUILTIN: Final[Mapping[str, ListRule]] = {
    "addresses": _by("type"),
    "conditions": _by("type"),
    "containers": _by("name"),
    "env": _by("name"),
    "ephemeralContainers": _by("name"),
    "finalizers": SET,
    "hostAliases": _by("ip"),
    "hostIPs": _by("ip"),
    "imagePullSecrets": _by("name"),
    "initContainers": _by("name"),
    "ownerReferences": _by("uid"),
    "podIPs": _by("ip"),
    "resourceClaims": _by("name"),
    "reservedFor": _by("uid"),
    "resourceClaimStatuses": _by("name"),
    "schedulingGates": _by("name"),
    "secrets": _by("name"),
    "topologySpreadConstraints": _by("topologyKey"),
    "volumeDevices": _by("devicePath"),
    "volumeMounts": _by("mountPath"),
    "volumes": _by("name"),
}
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")


def builtin_rules(path: FieldNames) -> ListRule:
    """The rule of strategic merge patch for a list of a built-in kind."""
    if path[-1] == "ports":
        return _by("containerPort") if len(path) > 1 and path[-2] in _CONTAINERS else _by("port")
    return _BUILTIN.get(path[-1], ATOMIC)


def builtin_apply_rules(path: FieldNames) -> ListRule:
    """The rule of server-side apply, which tells ports by number and protocol (``listMapKey`` markers of k8s.io/api)."""
    rule = builtin_rules(path)
    return ListRule((*rule.keys, "protocol")) if path[-1] == "ports" else rule


def schema_rules(schema: JsonObject) -> ListRules:
    """The rules that a CustomResourceDefinition's schema states with ``x-kubernetes-list-type``."""

    def rule(path: FieldNames) -> ListRule:
        if path[0] == "metadata":
            return builtin_rules(path)
        here: JsonObject = schema
        for step in path:
            while isinstance(here.get("items"), dict):
                here = here["items"]
            inner = (here.get("properties") or {}).get(step, here.get("additionalProperties"))
            if not isinstance(inner, dict):
                return ATOMIC
            here = inner
        kind = here.get("x-kubernetes-list-type")
        if kind == "map":
            return ListRule(tuple(here.get("x-kubernetes-list-map-keys") or ()))
        return SET if kind == "set" else ATOMIC

    return rule
