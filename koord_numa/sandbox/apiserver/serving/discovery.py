"""What there is to ask for: version, groups, resources, and the aggregated discovery document."""

from collections.abc import Iterable
from typing import Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject
from koord_numa.sandbox.apiserver.objects.kinds import Kind
from koord_numa.sandbox.apiserver.store.registry import Registry

VERSION: Final[JsonObject] = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}

_READ_WRITE: Final = ["get", "patch", "update"]
_CREATE: Final = ["create"]
# subresource → (verbs, group, version, kind) where its kind is not that of the resource
_SUBRESOURCES: Final = {
    "binding": (_CREATE, "", "v1", "Binding"),
    "eviction": (_CREATE, "policy", "v1", "Eviction"),
    "finalize": (["update"], "", "", ""),
    "portforward": (["create", "get"], "", "v1", "PodPortForwardOptions"),
}


def core_versions(address: str) -> JsonObject:
    """``/api``."""
    servers = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": servers}


def group_list(registry: Registry) -> JsonObject:
    """``/apis``."""
    groups = [group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(name: str, versions: Iterable[str]) -> JsonObject:
    """One API group; as a document of its own it also needs ``kind`` and ``apiVersion``."""
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(registry: Registry, group_name: str, version: str) -> JsonObject | None:
    """``/api/v1`` and ``/apis/<group>/<version>``; nothing when there is no such version."""
    kinds = [kind for kind in registry if kind.group == group_name and version in kind.versions]
    if not kinds:
        return None
    resources = [entry for kind in kinds for entry in _resources(kind, version)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": kinds[0].api_version(version),
        "resources": resources,
    }


def _resources(kind: Kind, version: str) -> Iterable[JsonObject]:
    entry: JsonObject = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
        "storageVersionHash": "",
    }
    if kind.custom:
        entry |= {"group": kind.group, "version": version}
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    yield entry
    for name in kind.subresources:
        verbs, group_name, sub_version, sub_kind = _SUBRESOURCES.get(name, (_READ_WRITE, "", "", ""))
        sub: JsonObject = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
        sub |= {"kind": sub_kind or kind.kind, "verbs": verbs}
        if group_name:
            sub |= {"group": group_name, "version": sub_version}
        yield sub


def aggregated(registry: Registry, core: Iterable[str], discovery_version: str) -> JsonObject:
    """The one document of all groups and resources; ``core`` holds the group names to include."""
    wanted = set(core)
    items = []
    for name, versions in registry.groups().items():
        if name in wanted:
            listed = [_aggregated_version(registry, name, version) for version in versions]
            items.append({"metadata": {"name": name, "creationTimestamp": None}, "versions": listed})
    api_version = f"apidiscovery.k8s.io/{discovery_version}"
    return {"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items}


def _aggregated_version(registry: Registry, group_name: str, version: str) -> JsonObject:
    kinds = [kind for kind in registry if kind.group == group_name and version in kind.versions]
    return {
        "version": version,
        "resources": [_aggregated_kind(kind, version) for kind in kinds],
        "freshness": "Current",
    }


def _aggregated_kind(kind: Kind, version: str) -> JsonObject:
    entry: JsonObject = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    subresources = []
    for name in kind.subresources:
        verbs, sub_group, sub_version, sub_kind = _SUBRESOURCES.get(name, (_READ_WRITE, "", "", ""))
        answer = {"group": sub_group or kind.group, "version": sub_version or version, "kind": sub_kind or kind.kind}
        subresources.append({"subresource": name, "responseKind": answer, "verbs": verbs})
    if subresources:
        entry["subresources"] = subresources
    return entry
