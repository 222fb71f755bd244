"""
Parse the gang of a pod, and PodGroups of three dialects (``core/objects/gangs.py``).

Sources: ``k8s.io/api/scheduling`` v1beta1 and v1alpha2; koordinator ``apis/extension/coscheduling.go``;
scheduler-plugins ``apis/scheduling/v1alpha1``. A malformed gang keeps its pods pending with a reason.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from koord_numa.core.objects.gangs import (
    Dialect,
    GangKey,
    GangMode,
    GangRef,
    GangSpec,
    GroupClaim,
    MatchPolicy,
    PodGroup,
    TopologyLevel,
)
from koord_numa.core.value_objects import replace
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, WireError, quoted
from koord_numa.wire.parsing import Count, EnumReader, Head, Problems, Strict, head, load_json, read, read_as, version

T = TypeVar("T")


class GangPolicyModel(Strict):
    """``schedulingPolicy.gang``."""

    min_count: Count


class GroupPolicyModel(Strict):
    """``schedulingPolicy``, a union with exactly one member."""

    basic: dict[str, Any] | None = None
    gang: GangPolicyModel | None = None


class GroupTopologyModel(Strict):
    """A topology constraint."""

    key: str


class GroupConstraintsModel(Strict):
    """``schedulingConstraints``."""

    topology: list[GroupTopologyModel] | None = None


class DisruptionModel(Strict):
    """``disruptionMode`` of v1beta1, a union with exactly one member."""

    single: dict[str, Any] | None = None
    all: dict[str, Any] | None = None


class GroupClaimModel(Strict):
    """An entry of ``resourceClaims`` with exactly one of both names."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class GroupClaimStatusModel(Strict):
    """An entry of ``status.resourceClaimStatuses``."""

    name: str
    resource_claim_name: str | None = None


class GroupStatusModel(Strict):
    """The part of the status of a PodGroup that is read."""

    resource_claim_statuses: list[GroupClaimStatusModel] | None = None


class PodGroupModel(Strict):
    """The spec of a PodGroup of ``scheduling.k8s.io``. v1alpha2 has the disruption mode as a word."""

    parent_composite_pod_group_name: str | None = None
    scheduling_policy: GroupPolicyModel | None = None
    scheduling_constraints: GroupConstraintsModel | None = None
    resource_claims: list[GroupClaimModel] | None = None
    disruption_mode: DisruptionModel | str | None = None
    priority: int | None = None
    preemption_policy: str | None = None


class MinMemberModel(Strict):
    """The spec of a PodGroup of the other two dialects."""

    min_member: Count = 1


class GatherModel(Strict):
    """A layer of Koordinator's ``network-topology-spec``."""

    layer: str
    strategy: str = "PreferGather"
    pod_count_multiple: int | None = None


class NetworkTopologyModel(Strict):
    """Koordinator's ``network-topology-spec``."""

    gather_strategy: list[GatherModel] | None = None


MODES: Final = EnumReader({mode.value: mode for mode in GangMode})
POLICIES: Final = EnumReader({policy.value: policy for policy in MatchPolicy})
DISRUPTION: Final = EnumReader({"Pod": False, "PodGroup": True})
PREEMPTION: Final = EnumReader({"PreemptLowerPriority": True, "Never": False})
_NAMES: Final = list[str]


KINDS: Final = {
    Dialect.KUBERNETES: "PodGroup (scheduling.k8s.io)",
    Dialect.KOORDINATOR: "PodGroup (scheduling.sigs.k8s.io)",
    Dialect.SCHEDULER_PLUGINS: "PodGroup (scheduling.x-k8s.io)",
}


def names_gang(obj: Mapping[str, Any]) -> bool:
    """Return whether the object of a pod may name a gang. Much faster than parsing the pod."""
    spec, metadata = obj.get("spec"), obj.get("metadata")
    if isinstance(spec, Mapping) and spec.get("schedulingGroup"):
        return True
    labels, annotations = (
        metadata.get(part) if isinstance(metadata, Mapping) else None for part in ("labels", "annotations")
    )
    return (isinstance(labels, Mapping) and not _LABELS.isdisjoint(labels)) or (
        isinstance(annotations, Mapping) and names.GANG_NAME in annotations
    )


def gang_of_pod(top: Head, spec: Mapping[str, Any]) -> GangRef | None:
    """Return the gang of a pod, or ``None`` for a pod without a gang. Never raises."""
    group, labels, annotations = spec.get("schedulingGroup"), top.labels, top.annotations
    if not group and _LABELS.isdisjoint(labels) and names.GANG_NAME not in annotations:
        return None
    namespace = top.namespace or "default"
    path = FieldPath("annotations")  # without the pod name: pods share the parsed gang
    found: list[GangRef] = []
    if group:
        found.append(_kubernetes_ref(namespace, group))
    if names.POD_GROUP_LABEL in labels or names.GANG_NAME_LABEL in labels or names.GANG_NAME in annotations:
        found.append(_koordinator_ref(namespace, labels, annotations, path))
    if names.X_POD_GROUP_LABEL in labels:
        found.append(GangRef(GangKey(Dialect.SCHEDULER_PLUGINS, namespace, labels[names.X_POD_GROUP_LABEL])))
    if len(found) > 1:
        dialects = " and ".join(ref.key.dialect.value for ref in found)
        return replace(found[0], problem=f"the pod belongs to gangs of {dialects}: only one is supported")
    return found[0]


def parse_pod_group(dialect: Dialect, obj: Mapping[str, Any]) -> PodGroup:
    """Parse a PodGroup. Raises ``WireError`` only for an object without a name."""
    top = head(obj, KINDS[dialect], Problems())
    key = GangKey(dialect, top.namespace or "default", top.name)
    path, raw = top.path.at("spec"), top.body.get("spec") or {}
    spec = _contained(lambda: _spec_of(dialect, key, raw, top.annotations, path))
    status = top.body.get("status")
    names = _claim_names(status, top.path.at("status")) if spec.claims else ()
    return PodGroup(key, spec, top.uid, version(top), _is_satisfied(dialect, status), names)


def _kubernetes_ref(namespace: str, group: object) -> GangRef:
    name = group.get("podGroupName") if isinstance(group, Mapping) else None
    key = GangKey(Dialect.KUBERNETES, namespace, name if isinstance(name, str) else "")
    unknown = sorted(str(part) for part in group if part != "podGroupName") if isinstance(group, Mapping) else ()
    if unknown:
        return GangRef(key, problem=f"schedulingGroup.{unknown[0]} is not supported")
    return GangRef(key, problem="" if key.name else "schedulingGroup names no podGroupName")


def _koordinator_ref(
    namespace: str, labels: Mapping[str, str], annotations: Mapping[str, str], path: FieldPath
) -> GangRef:
    """
    Return the gang by the PodGroup label, the deprecated label and the annotation (``GetGangName``).

    Different names in these places are a problem of the gang.
    """
    found = {
        labels.get(names.POD_GROUP_LABEL, ""),
        labels.get(names.GANG_NAME_LABEL, ""),
        annotations.get(names.GANG_NAME, ""),
    } - {""}
    if len(found) != 1:
        why = (
            f"labels and annotations name different gangs: {', '.join(sorted(found))}"
            if found
            else "the gang has no name"
        )
        return GangRef(GangKey(Dialect.KOORDINATOR, namespace, min(found, default="")), problem=why)
    key = GangKey(Dialect.KOORDINATOR, namespace, found.pop())
    # Koordinator marks the pods of a gang that has waited for too long. They are not scheduled until the mark is removed.
    if annotations.get(names.GANG_TIMEOUT) == "true":
        return GangRef(key, problem=f"gang has timeout, gangName: {key}: remove the annotation {names.GANG_TIMEOUT}")
    if names.POD_GROUP_LABEL in labels:
        return GangRef(key)
    written = labels.get(names.GANG_MIN_LABEL) or annotations.get(names.GANG_MIN, "")
    spec = _contained(lambda: _koordinator_spec(key, _count(written, path.at(names.GANG_MIN)), annotations, path))
    return GangRef(key, spec)


def _contained(parse: Callable[[], GangSpec]) -> GangSpec:
    try:
        return parse()
    except WireError as error:
        return GangSpec(problem=f"the gang is malformed: {error}")


def _count(text: str, path: FieldPath) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise path.error(f"{quoted(text)} is not a number of pods")
    return int(text)


def _spec_of(
    dialect: Dialect, key: GangKey, raw: Mapping[str, Any], annotations: Mapping[str, str], path: FieldPath
) -> GangSpec:
    if dialect is Dialect.KUBERNETES:
        return _kubernetes_spec(read(PodGroupModel, raw, path), path)
    count = read(MinMemberModel, raw, path).min_member
    return _koordinator_spec(key, count, annotations, path) if dialect is Dialect.KOORDINATOR else GangSpec(count)


def _kubernetes_spec(model: PodGroupModel, path: FieldPath) -> GangSpec:
    policy = model.scheduling_policy or GroupPolicyModel()
    if (policy.basic is None) == (policy.gang is None):
        raise path.at("schedulingPolicy").error("must have exactly one of basic and gang")
    if model.parent_composite_pod_group_name:
        raise path.at("parentCompositePodGroupName").error("CompositePodGroups are not supported")
    topology = (model.scheduling_constraints or GroupConstraintsModel()).topology or []
    levels = tuple(TopologyLevel(each.key) for each in topology)
    preempts = PREEMPTION.read(model.preemption_policy or "PreemptLowerPriority", path.at("preemptionPolicy"))
    return GangSpec(
        1 if policy.gang is None else policy.gang.min_count,
        basic=policy.gang is None,
        levels=levels,
        disrupted_together=_is_disrupted_together(model.disruption_mode, path.at("disruptionMode")),
        preempts=preempts,
        priority=model.priority,
        claims=tuple(_group_claim(each, path.at("resourceClaims")) for each in model.resource_claims or ()),
    )


def _group_claim(model: GroupClaimModel, path: FieldPath) -> GroupClaim:
    if bool(model.resource_claim_name) == bool(model.resource_claim_template_name):
        raise path.error(
            f"{quoted(model.name)} must have exactly one of resourceClaimName and resourceClaimTemplateName"
        )
    return GroupClaim(model.name, model.resource_claim_name or "", model.resource_claim_template_name or "")


def _claim_names(status: object, path: FieldPath) -> tuple[tuple[str, str], ...]:
    try:
        statuses = read(GroupStatusModel, status or {}, path).resource_claim_statuses or ()
    except WireError:
        return ()  # members wait for their claim
    return tuple((each.name, each.resource_claim_name or "") for each in statuses)


def _is_disrupted_together(mode: DisruptionModel | str | None, path: FieldPath) -> bool:
    if isinstance(mode, str):
        return DISRUPTION.read(mode, path)
    if mode is None:
        return False
    if (mode.single is None) == (mode.all is None):
        raise path.error("must have exactly one of single and all")
    return mode.all is not None


def _koordinator_spec(key: GangKey, count: int, annotations: Mapping[str, str], path: FieldPath) -> GangSpec:
    """Parse the annotations as ``gang.tryInitByPodConfig``, but unknown modes and match policies are errors instead of defaults."""
    mode = annotations.get(names.GANG_MODE, "") or GangMode.STRICT.value
    policy = annotations.get(names.GANG_MATCH_POLICY) or annotations.get(names.GANG_MATCH_POLICY_ALIAS, "")
    groups = annotations.get(names.GANG_GROUPS, "")
    where = path.at(names.GANG_GROUPS)
    group = read_as(_NAMES, load_json(groups, where), where) if groups else []
    # Elements without a namespace are not gangs (util.StringToGangGroupSlice).
    if wrong := [name for name in group if name.count("/") != 1]:
        raise where.error(f"{quoted(wrong[0])} is not namespace/name")
    return GangSpec(
        count,
        match_policy=POLICIES.read(policy or MatchPolicy.ONCE_SATISFIED.value, path.at(names.GANG_MATCH_POLICY)),
        mode=MODES.read(mode, path.at(names.GANG_MODE)),
        group=tuple(sorted(set(group) or {str(key)})),
        levels=_levels(annotations.get(names.GANG_TOPOLOGY, ""), path.at(names.GANG_TOPOLOGY)),
    )


def _levels(text: str, path: FieldPath) -> tuple[TopologyLevel, ...]:
    if not text:
        return ()
    found = []
    for each in read(NetworkTopologyModel, load_json(text, path), path).gather_strategy or ():
        label = names.TOPOLOGY_LAYERS.get(each.layer)
        if label is None:
            raise path.error(f"{quoted(each.layer)} is none of {', '.join(sorted(names.TOPOLOGY_LAYERS))}")
        if each.strategy not in ("MustGather", "PreferGather"):
            raise path.error(f"{quoted(each.strategy)} is none of MustGather, PreferGather")
        if (each.pod_count_multiple or 1) != 1:
            raise path.error("podCountMultiple is not supported")
        found.append(TopologyLevel(label, required=each.strategy == "MustGather"))
    return tuple(found)


def _is_satisfied(dialect: Dialect, status: object) -> bool:
    """Return whether the status reports that the gang has been scheduled."""
    if not isinstance(status, Mapping):
        return False
    if dialect is not Dialect.KUBERNETES:
        return status.get("phase") in ("Scheduled", "Running", "Finished")
    conditions = status.get("conditions")
    return any(
        isinstance(each, Mapping)
        and each.get("type") in ("PodGroupInitiallyScheduled", "PodGroupScheduled")
        and each.get("status") == "True"
        for each in (conditions if isinstance(conditions, list) else ())
    )


_LABELS: Final = frozenset({names.POD_GROUP_LABEL, names.GANG_NAME_LABEL, names.X_POD_GROUP_LABEL})

ANNOTATIONS: Final = (
    names.GANG_NAME,
    names.GANG_MIN,
    names.GANG_MODE,
    names.GANG_GROUPS,
    names.GANG_MATCH_POLICY,
    names.GANG_MATCH_POLICY_ALIAS,
    names.GANG_TOPOLOGY,
    names.GANG_TIMEOUT,
)
"""Annotations of pods that define a gang."""
