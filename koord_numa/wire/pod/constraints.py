"""What a pod's spec demands of nodes besides resources. What we cannot honour is listed in words, never dropped in silence."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from koord_numa.core.objects.constraints import (
    Constraints,
    HostPort,
    NodeTerm,
    Operator,
    PreferredNodeTerm,
    SpreadConstraint,
    TaintEffect,
    Toleration,
)
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.metadata import Head
from koord_numa.wire.parsing import Count, EnumReader, Strict, Weight
from koord_numa.wire.pod.pod_affinity import AffinityTerms, OwnPod, fold_keys, pod_terms, preferred_pod_terms
from koord_numa.wire.pod.volume_mounts import VolumeModel, volumes
from koord_numa.wire.selectors import (
    LabelSelectorModel,
    NodeSelectorModel,
    NodeTermModel,
    label_pairs,
    label_selector,
    node_term,
    node_terms,
)

EFFECTS: Final = EnumReader({"": "", **{effect.value: effect.value for effect in TaintEffect}})
TOLERATES: Final = EnumReader({"": "Equal", "Equal": "Equal", "Exists": "Exists", "Gt": "Gt", "Lt": "Lt"})
WHEN_UNSATISFIABLE: Final = EnumReader({"DoNotSchedule": True, "ScheduleAnyway": False})
INCLUSION: Final = EnumReader({"Honor": True, "Ignore": False})

Port = Annotated[int, Field(ge=0, le=65535)]


class TolerationModel(Strict):
    """One toleration; how long it lasts is no business of placement."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class PreferredNodeModel(Strict):
    """A weighted node term."""

    weight: Weight
    preference: NodeTermModel = NodeTermModel()  # an absent preference is an empty one


class NodeAffinityModel(Strict):
    """Required and preferred node affinity."""

    required: NodeSelectorModel | None = Field(None, alias="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[PreferredNodeModel] | None = Field(None, alias="preferredDuringSchedulingIgnoredDuringExecution")


class AffinityModel(Strict):
    """All kinds of affinity."""

    node_affinity: NodeAffinityModel | None = None
    pod_affinity: AffinityTerms | None = None
    pod_anti_affinity: AffinityTerms | None = None


class SpreadModel(Strict):
    """One topology spread constraint."""

    topology_key: str
    max_skew: Count = 1
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelectorModel | None = None
    min_domains: Count | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class PortModel(Strict):
    """A container's port."""

    host_port: Port | None = None
    container_port: Port | None = None
    protocol: str | None = None
    host_ip: str | None = Field(None, alias="hostIP")


class ConstraintsModel(Strict):
    """The part of a pod's spec that is about where it may run."""

    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    affinity: AffinityModel | None = None
    tolerations: list[TolerationModel] | None = None
    topology_spread_constraints: list[SpreadModel] | None = None
    volumes: list[VolumeModel] | None = None
    host_network: bool | None = None
    host_users: bool | None = None
    scheduling_group: dict[str, Any] | None = None


def constraints(top: Head, demands: ConstraintsModel, ports: Iterable[PortModel], restarts_all: bool) -> Constraints:
    """
    Every demand of one pod. ``ports`` are those of its long-running containers; ``restarts_all``: some container restarts all of them.
    """
    path = top.path.at("spec")
    pod = OwnPod(top.namespace or "default", top.labels)
    affinity = demands.affinity or _NO_AFFINITY
    near, far = affinity.pod_affinity or _NO_TERMS, affinity.pod_anti_affinity or _NO_TERMS
    node = affinity.node_affinity or _NO_NODE_AFFINITY
    # Volumes before the rest, since claims, disks and refusals come from them.
    mounted = volumes(top, demands.volumes or ())
    return Constraints(
        node_name=demands.node_name or "",
        node_selector=label_pairs(demands.node_selector),
        # No required terms is no demand; an empty list of terms matches no node.
        node_terms=None if node.required is None else node_terms(node.required, path.at("nodeAffinity")),
        preferred_nodes=_preferred_nodes(node.preferred or (), path.at("nodeAffinity")),
        tolerations=_tolerations(demands.tolerations or (), path.at("tolerations")),
        affinity=pod_terms(near.required or (), pod, path.at("podAffinity")),
        anti_affinity=pod_terms(far.required or (), pod, path.at("podAntiAffinity")),
        preferred_affinity=preferred_pod_terms(near.preferred or (), pod, path.at("podAffinity")),
        preferred_anti_affinity=preferred_pod_terms(far.preferred or (), pod, path.at("podAntiAffinity")),
        spread=tuple(_spread(model, pod, path) for model in demands.topology_spread_constraints or ()),
        host_ports=_host_ports(ports, demands),
        claims=mounted.claims,
        ephemeral=mounted.ephemeral,
        disks=mounted.disks,
        features=_features(demands, restarts_all),
        unsupported=mounted.unsupported + _unsupported_annotations(top.annotations),
    )


def _preferred_nodes(models: Iterable[PreferredNodeModel], path: FieldPath) -> tuple[PreferredNodeTerm, ...]:
    return tuple(
        PreferredNodeTerm(model.weight, term)
        for model in models
        if (term := node_term(model.preference, path)) != NodeTerm()  # an empty preference prefers nothing
    )


def _tolerations(models: Iterable[TolerationModel], path: FieldPath) -> tuple[Toleration, ...]:
    return tuple(_toleration(model, path) for model in models)


def _toleration(model: TolerationModel, path: FieldPath) -> Toleration:
    operator = TOLERATES.read(model.operator or "", path.at("operator"))
    return Toleration(
        key=model.key or "",
        # Any operator but Exists compares the value.
        exists=operator == "Exists",
        value=model.value or "",
        effect=EFFECTS.read(model.effect or "", path.at("effect")),
        compares=Operator(operator) if operator in ("Gt", "Lt") else None,
    )


def _features(demands: ConstraintsModel, restarts_all: bool) -> tuple[str, ...]:
    """Node features that kubelets without them refuse the pod for (``component-helpers/nodedeclaredfeatures``)."""
    needed = []
    if restarts_all:
        needed.append("RestartAllContainersOnContainerExits")
    # Only an explicit false: the default is the host's user namespace.
    if demands.host_network and demands.host_users is False:
        needed.append("UserNamespacesHostNetworkSupport")
    return tuple(needed)


def _spread(model: SpreadModel, pod: OwnPod, path: FieldPath) -> SpreadConstraint:
    path = path.at("topologySpreadConstraints")
    return SpreadConstraint(
        topology_key=model.topology_key,
        max_skew=model.max_skew,
        hard=WHEN_UNSATISFIABLE.read(model.when_unsatisfiable, path.at("whenUnsatisfiable")),
        # ``matchLabelKeys`` are folded into the selector, as the API server does for pod affinity.
        selector=label_selector(model.label_selector, path, fold_keys(pod, model.match_label_keys)),
        min_domains=model.min_domains or 1,
        # The defaults of the two policies differ: Honor for affinity, Ignore for taints.
        honor_affinity=INCLUSION.read(model.node_affinity_policy or "Honor", path.at("nodeAffinityPolicy")),
        honor_taints=INCLUSION.read(model.node_taints_policy or "Ignore", path.at("nodeTaintsPolicy")),
    )


def _host_ports(ports: Iterable[PortModel], demands: ConstraintsModel) -> tuple[HostPort, ...]:
    found: set[tuple[int, str, str]] = set()
    for port in ports:
        # The API server fills hostPort in on the host's network; an object that never passed it gets the same here.
        number = port.host_port or (port.container_port if demands.host_network else None)
        if number:
            found.add((number, port.protocol or "TCP", port.host_ip or "0.0.0.0"))  # noqa: S104  (Kubernetes' wildcard)
    return tuple(HostPort(number, protocol, ip) for number, protocol, ip in sorted(found))


_UNSUPPORTED_ANNOTATIONS: Final = {
    names.RESERVATION_AFFINITY: "affinity to Koordinator reservations",
    names.DEVICE_JOINT_ALLOCATE: "joint allocation of devices by Koordinator",
    names.GPU_PARTITION_SPEC: "GPU partitions of Koordinator",
}


def _unsupported_annotations(annotations: Mapping[str, str]) -> tuple[str, ...]:
    # The usual pod has none of them.
    if _UNSUPPORTED_ANNOTATIONS.keys().isdisjoint(annotations):
        return ()
    return tuple(words for name, words in _UNSUPPORTED_ANNOTATIONS.items() if name in annotations)


_NO_AFFINITY: Final = AffinityModel()
_NO_TERMS: Final = AffinityTerms()
_NO_NODE_AFFINITY: Final = NodeAffinityModel()
