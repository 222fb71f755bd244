"""Parse the request of a pod: resources, scheduling constraints, volumes and Koordinator's policies."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from msgspec import Meta

from koord_numa.core.objects.constraints import (
    Constraints,
    DiskKind,
    HostPort,
    InlineDisk,
    NodeTerm,
    Operator,
    PodTerm,
    PreferredNodeTerm,
    PreferredPodTerm,
    Requirement,
    SpreadConstraint,
    TaintEffect,
    Toleration,
)
from koord_numa.core.objects.devices import NO_DEVICE_SPEC
from koord_numa.core.objects.request import Container, CpuBind, NumaSpec, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, PriorityClass, QosClass
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import ValueObject, value_field
from koord_numa.wire import names
from koord_numa.wire.devices import device_spec
from koord_numa.wire.errors import FieldPath, WireError
from koord_numa.wire.gangs import gang_of_pod
from koord_numa.wire.parsing import (
    Count,
    EnumReader,
    Head,
    Problems,
    Quantity,
    Strict,
    Weight,
    read,
    read_as,
    requested,
)
from koord_numa.wire.pod_annotations import isolated, numa_spread, policies, priority_class, qos_class
from koord_numa.wire.workloads import (
    LabelSelectorModel,
    NodeSelectorModel,
    NodeTermModel,
    label_pairs,
    label_selector,
    node_term,
    node_terms,
)

FREE_KINDS: Final = frozenset(
    {
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "fc",
        "flexVolume",
        "flocker",
    }
    | {
        "gitRepo",
        "glusterfs",
        "hostPath",
        "image",
        "nfs",
        "photonPersistentDisk",
        "portworxVolume",
        "projected",
        "quobyte",
    }
    | {"scaleIO", "secret", "storageos", "vsphereVolume"}
)
"""Volume kinds that no filter of kube-scheduler checks: any node can mount them."""


class ClaimSource(Strict):
    """A volume from a claim."""

    claim_name: Annotated[str, Meta(min_length=1)]


class GceDisk(Strict):
    """A GCE persistent disk."""

    pd_name: str = ""
    read_only: bool | None = None


class AwsDisk(Strict):
    """An AWS EBS volume."""

    volume_id: str = value_field(default="", name="volumeID")
    read_only: bool | None = None


class IscsiDisk(Strict):
    """An iSCSI disk."""

    iqn: str = ""
    read_only: bool | None = None


class RbdDisk(Strict):
    """A Ceph RBD image."""

    monitors: list[str] = value_field(default_factory=list)
    pool: str = ""
    image: str = ""
    read_only: bool | None = None


class VolumeModel(Strict):
    """A volume. Its kind is the name of the field that is set."""

    name: str
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None
    gce_persistent_disk: GceDisk | None = None
    aws_elastic_block_store: AwsDisk | None = None
    iscsi: IscsiDisk | None = None
    rbd: RbdDisk | None = None


class Mounts(ValueObject):
    """The volumes of a pod. ``ephemeral``: claims created for the pod, with the UID of their required owner."""

    claims: tuple[str, ...]
    ephemeral: tuple[tuple[str, str], ...]
    disks: tuple[InlineDisk, ...]
    unsupported: tuple[str, ...]


def volumes(top: Head, listed: list[dict[str, Any]], path: FieldPath) -> Mounts:
    """Return claims by name (``<pod>-<volume>`` for ephemeral volumes), disks, and a sentence for each unknown kind."""
    claims: set[str] = set()
    ephemeral: set[str] = set()
    disks: set[InlineDisk] = set()
    unsupported: list[str] = []
    models: list[VolumeModel] = read_as(list[VolumeModel], listed, path, "volumes")
    for model, volume in zip(models, listed, strict=True):
        if model.persistent_volume_claim is not None:
            claims.add(model.persistent_volume_claim.claim_name)
        elif model.ephemeral is not None:
            ephemeral.add(f"{top.name}-{model.name}")
        elif (disk := _disk(model)) is not None:
            disks.add(disk)
        else:
            kinds = [kind for kind, source in volume.items() if source is not None and kind not in _VOLUME_FIELDS]
            unsupported += [f"volume {model.name} of kind {kind}" for kind in sorted(kinds) if kind not in FREE_KINDS]
    owned = tuple((name, top.uid) for name in sorted(ephemeral))
    return Mounts(tuple(sorted(claims | ephemeral)), owned, tuple(sorted(disks, key=_order)), tuple(unsupported))


_VOLUME_FIELDS: Final = frozenset(VolumeModel.__struct_encode_fields__)


def _disk(model: VolumeModel) -> InlineDisk | None:
    """Return the disk with the identity by which volume_restrictions.go compares disks of a kind."""
    if (gce := model.gce_persistent_disk) is not None:
        return InlineDisk(DiskKind.GCE, gce.pd_name, bool(gce.read_only))
    if (aws := model.aws_elastic_block_store) is not None:
        return InlineDisk(DiskKind.AWS, aws.volume_id, bool(aws.read_only))
    if (iscsi := model.iscsi) is not None:
        return InlineDisk(DiskKind.ISCSI, iscsi.iqn, bool(iscsi.read_only))
    if (rbd := model.rbd) is not None:
        return InlineDisk(DiskKind.RBD, f"{rbd.pool}/{rbd.image}", bool(rbd.read_only), frozenset(rbd.monitors))
    return None


def _order(disk: InlineDisk) -> tuple[str, str, bool, list[str]]:
    return (disk.kind.value, disk.identity, disk.read_only, sorted(disk.monitors))


class OwnPod(ValueObject):
    """The pod that owns the terms."""

    namespace: str
    labels: Mapping[str, str]


class PodTermModel(Strict):
    """A pod affinity term."""

    topology_key: str
    label_selector: LabelSelectorModel | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelectorModel | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PreferredPodModel(Strict):
    """A weighted pod affinity term."""

    weight: Weight
    pod_affinity_term: PodTermModel


class AffinityTerms(Strict):
    """Required and preferred terms."""

    required: list[PodTermModel] | None = value_field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredPodModel] | None = value_field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


def fold_keys(pod: OwnPod, keys: Iterable[str] | None, operator: Operator = Operator.IN) -> list[Requirement]:
    """Return conditions on the pod's own label values. Keys that the pod does not have are ignored, as in Kubernetes."""
    return [Requirement(key, operator, (pod.labels[key],)) for key in keys or () if key in pod.labels]


def pod_terms(models: Iterable[PodTermModel], pod: OwnPod, path: FieldPath) -> tuple[PodTerm, ...]:
    """Return the required terms, all of which must hold."""
    return tuple(_term(model, pod, path) for model in models)


def preferred_pod_terms(
    models: Iterable[PreferredPodModel], pod: OwnPod, path: FieldPath
) -> tuple[PreferredPodTerm, ...]:
    """Return the weighted terms."""
    return tuple(PreferredPodTerm(model.weight, _term(model.pod_affinity_term, pod, path)) for model in models)


def _term(model: PodTermModel, pod: OwnPod, path: FieldPath) -> PodTerm:
    own = [
        *fold_keys(pod, model.match_label_keys),
        *fold_keys(pod, model.mismatch_label_keys, Operator.NOT_IN),
    ]
    # Sorted, so that equal terms are equal values.
    namespaces = tuple(sorted(set(model.namespaces or ())))
    if not namespaces and model.namespace_selector is None:
        # Only without a selector: an empty list with a selector means the selector alone.
        namespaces = (pod.namespace,)
    return PodTerm(
        topology_key=model.topology_key,
        selector=label_selector(model.label_selector, path.at("labelSelector"), own),
        namespaces=namespaces,
        namespace_selector=label_selector(model.namespace_selector, path.at("namespaceSelector")),
    )


EFFECTS: Final = EnumReader({"": "", **{effect.value: effect.value for effect in TaintEffect}})
TOLERATES: Final = EnumReader({"": "Equal", "Equal": "Equal", "Exists": "Exists", "Gt": "Gt", "Lt": "Lt"})
WHEN_UNSATISFIABLE: Final = EnumReader({"DoNotSchedule": True, "ScheduleAnyway": False})
INCLUSION: Final = EnumReader({"Honor": True, "Ignore": False})

Port = Annotated[int, Meta(ge=0, le=65535)]


class TolerationModel(Strict):
    """A toleration. Its duration is irrelevant for placement."""

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

    required: NodeSelectorModel | None = value_field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredNodeModel] | None = value_field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class AffinityModel(Strict):
    """Node affinity, pod affinity and pod anti-affinity."""

    node_affinity: NodeAffinityModel | None = None
    pod_affinity: AffinityTerms | None = None
    pod_anti_affinity: AffinityTerms | None = None


class SpreadModel(Strict):
    """A topology spread constraint."""

    topology_key: str
    max_skew: Count = 1
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelectorModel | None = None
    min_domains: Count | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class PortModel(Strict):
    """A port of a container."""

    host_port: Port | None = None
    container_port: Port | None = None
    protocol: str | None = None
    host_ip: str | None = value_field(default=None, name="hostIP")


class ConstraintsModel(Strict):
    """The part of a pod's spec about where it may run."""

    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    affinity: AffinityModel | None = None
    tolerations: list[TolerationModel] | None = None
    topology_spread_constraints: list[SpreadModel] | None = None
    volumes: list[dict[str, Any]] | None = None
    host_network: bool | None = None
    host_users: bool | None = None
    scheduling_group: dict[str, Any] | None = None


def constraints(top: Head, demands: ConstraintsModel, ports: Iterable[PortModel], restarts_all: bool) -> Constraints:
    """
    Return the constraints of a pod.

    ``ports`` are those of its long-running containers. ``restarts_all``: a container restarts all containers.
    """
    path = top.path.at("spec")
    pod = OwnPod(top.namespace or "default", top.labels)
    affinity = demands.affinity or _NO_AFFINITY
    near, far = affinity.pod_affinity or _NO_TERMS, affinity.pod_anti_affinity or _NO_TERMS
    node = affinity.node_affinity or _NO_NODE_AFFINITY
    # Volumes first: claims, disks and unsupported kinds depend on them.
    mounted = volumes(top, demands.volumes or [], path)
    return Constraints(
        node_name=demands.node_name or "",
        node_selector=label_pairs(demands.node_selector),
        # No required terms is no demand. An empty list of terms matches no node.
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
        if (term := node_term(model.preference, path)) != NodeTerm()  # an empty preference has no effect
    )


def _tolerations(models: Iterable[TolerationModel], path: FieldPath) -> tuple[Toleration, ...]:
    return tuple(_toleration(model, path) for model in models)


def _toleration(model: TolerationModel, path: FieldPath) -> Toleration:
    operator = TOLERATES.read(model.operator or "", path.at("operator"))
    return Toleration(
        key=model.key or "",
        # Every operator but Exists compares the value.
        exists=operator == "Exists",
        value=model.value or "",
        effect=EFFECTS.read(model.effect or "", path.at("effect")),
        compares=Operator(operator) if operator in ("Gt", "Lt") else None,
    )


def _features(demands: ConstraintsModel, restarts_all: bool) -> tuple[str, ...]:
    """Return the node features that the pod needs: kubelets without them reject it (``component-helpers/nodedeclaredfeatures``)."""
    needed = []
    if restarts_all:
        needed.append("RestartAllContainersOnContainerExits")
    # Only an explicit false: the default is the user namespace of the host.
    if demands.host_network and demands.host_users is False:
        needed.append("UserNamespacesHostNetworkSupport")
    return tuple(needed)


def _spread(model: SpreadModel, pod: OwnPod, path: FieldPath) -> SpreadConstraint:
    path = path.at("topologySpreadConstraints")
    return SpreadConstraint(
        topology_key=model.topology_key,
        max_skew=model.max_skew,
        hard=WHEN_UNSATISFIABLE.read(model.when_unsatisfiable, path.at("whenUnsatisfiable")),
        # ``matchLabelKeys`` are merged into the selector, as the API server does for pod affinity.
        selector=label_selector(model.label_selector, path, fold_keys(pod, model.match_label_keys)),
        min_domains=model.min_domains or 1,
        # The defaults of the two policies differ: Honor for affinity, Ignore for taints.
        honor_affinity=INCLUSION.read(model.node_affinity_policy or "Honor", path.at("nodeAffinityPolicy")),
        honor_taints=INCLUSION.read(model.node_taints_policy or "Ignore", path.at("nodeTaintsPolicy")),
    )


def _host_ports(ports: Iterable[PortModel], demands: ConstraintsModel) -> tuple[HostPort, ...]:
    found: set[tuple[int, str, str]] = set()
    for port in ports:
        # The API server defaults hostPort on the host network. Objects that never passed it get the same default here.
        number = port.host_port or (port.container_port if demands.host_network else None)
        if number:
            found.add((number, port.protocol or "TCP", port.host_ip or "0.0.0.0"))  # noqa: S104  (Kubernetes' wildcard)
    return tuple(HostPort(number, protocol, ip) for number, protocol, ip in sorted(found))


_UNSUPPORTED_ANNOTATIONS: Final = {
    names.RESERVATION_AFFINITY: "affinity to Koordinator reservations",
}


def _unsupported_annotations(annotations: Mapping[str, str]) -> tuple[str, ...]:
    # Most pods have none of them.
    if _UNSUPPORTED_ANNOTATIONS.keys().isdisjoint(annotations):
        return ()
    return tuple(words for name, words in _UNSUPPORTED_ANNOTATIONS.items() if name in annotations)


_NO_AFFINITY: Final = AffinityModel()
_NO_TERMS: Final = AffinityTerms()
_NO_NODE_AFFINITY: Final = NodeAffinityModel()


class Resources(Strict):
    """Requests and limits of a container or of a whole pod."""

    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class ClaimUseModel(Strict):
    """A claim of the pod that a container uses, or a single request of the claim."""

    name: str
    request: str | None = None


class ContainerResources(Resources):
    """Requests, limits and claims of a container."""

    claims: list[ClaimUseModel] | None = None


class ContainerModel(Strict):
    """A container."""

    name: str
    resources: ContainerResources | None = None
    ports: list[PortModel] | None = None
    restart_policy: str | None = None  # Always makes an init container a sidecar
    restart_policy_rules: list[dict[str, Any]] | None = None


class WorkloadModel(Strict):
    """The part of a pod's spec about its containers."""

    containers: list[ContainerModel] | None = None
    init_containers: list[ContainerModel] | None = None
    overhead: dict[str, Quantity] | None = None
    resources: Resources | None = None


def pod_request(top: Head, spec: dict[str, Any], priority: int, problems: Problems) -> PodRequest:
    """Return all parts of a pod that may affect its placement."""
    found = problems.collect(lambda: _read_workload(spec, top.path.at("spec")), None)
    # A malformed pod that runs still holds its requests.
    work = _Work(_whatever_counts(spec), {}, None, None, ()) if found is None else found
    bind, numa = problems.collect(lambda: policies(top.annotations, top.path), _NO_POLICIES)
    bind = problems.collect(lambda: isolated(bind, top.annotations, top.path), bind)
    return PodRequest(
        containers=work.containers,
        overhead=work.overhead,
        pod_requests=work.pod_requests,
        pod_limits=work.pod_limits,
        qos=problems.collect(lambda: qos_class(top.labels, top.path), QosClass.NONE),
        priority_class=problems.collect(lambda: priority_class(top.labels, top.path), PriorityClass.NONE),
        priority=priority,
        bind=bind,
        numa=numa,
        numa_spread=problems.collect(lambda: numa_spread(top.annotations, top.namespace or "default", top.path), None),
        devices=problems.collect(lambda: device_spec(top.annotations, top.path), NO_DEVICE_SPEC),
        constraints=_constraints(top, spec, work, problems),
        namespace=top.namespace or "default",
        labels=label_pairs(top.labels),
        gang=gang_of_pod(top, spec),
    )


class _Work(ValueObject):
    containers: tuple[Container, ...]
    overhead: ResourceList
    pod_requests: ResourceList | None
    pod_limits: ResourceList | None
    ports: tuple[PortModel, ...]
    restarts_all: bool = False  # a container restarts all containers of the pod when it exits in certain ways


def _read_workload(spec: dict[str, Any], path: FieldPath) -> _Work:
    work = read(WorkloadModel, spec, path)
    containers = tuple(_containers(work, path))
    pod_requests, pod_limits = _pod_level(work.resources, containers, path.at("resources"))
    ports = tuple(port for model in _long_running(work) for port in model.ports or ())
    # Includes rules of init containers: any of them may restart the others.
    models = [*(work.init_containers or ()), *(work.containers or ())]
    rules = [rule for model in models for rule in model.restart_policy_rules or ()]
    restarts_all = any(rule.get("action") == "RestartAllContainers" for rule in rules)
    overhead = requested(work.overhead, path.at("overhead"))
    return _Work(containers, overhead, pod_requests, pod_limits, ports, restarts_all)


def _constraints(top: Head, spec: dict[str, Any], work: _Work, problems: Problems) -> Constraints:
    node = spec.get("nodeName")
    known = Constraints(node_name=node if isinstance(node, str) else "")
    path = top.path.at("spec")
    return problems.collect(
        lambda: constraints(top, read(ConstraintsModel, spec, path), work.ports, work.restarts_all), known
    )


def _containers(work: WorkloadModel, path: FieldPath) -> Iterable[Container]:
    for model in work.init_containers or ():
        # The restart policy Always makes an init container a sidecar (KEP-753).
        sidecar = model.restart_policy == "Always"
        kind = ContainerKind.SIDECAR if sidecar else ContainerKind.INIT
        yield _container(model, kind, path.at("initContainers"))
    for model in work.containers or ():
        yield _container(model, ContainerKind.APP, path.at("containers"))


def _container(model: ContainerModel, kind: ContainerKind, path: FieldPath) -> Container:
    resources = model.resources or _NO_RESOURCES
    limits = requested(resources.limits, path.at("limits"))
    requests = requested(resources.requests, path.at("requests"))
    # Requests default to limits by resource, as in the API server.
    claims = tuple((it.name, it.request or "") for it in resources.claims or ())
    return Container(model.name, kind, limits | requests if limits else requests, limits, claims)


def _pod_level(
    resources: Resources | None, containers: Iterable[Container], path: FieldPath
) -> tuple[ResourceList | None, ResourceList | None]:
    """
    Return requests and limits on pod level. Requests default to limits for resources that no container requests.

    This is the default of the API server.
    """
    if resources is None or not (resources.requests or resources.limits):
        return None, None
    limits = requested(resources.limits, path.at("limits"))
    requests = requested(resources.requests, path.at("requests"))
    mentioned = {name for container in containers for name in container.requests}
    return {name: amount for name, amount in limits.items() if name not in mentioned} | requests, limits


def _long_running(work: WorkloadModel) -> Iterable[ContainerModel]:
    yield from (model for model in work.init_containers or () if model.restart_policy == "Always")
    yield from work.containers or ()


def _whatever_counts(spec: Mapping[str, Any]) -> tuple[Container, ...]:
    """Return the containers of a malformed pod with all readable amounts, since a running pod uses them."""
    kinds = {"initContainers": ContainerKind.INIT, "containers": ContainerKind.APP}
    found: list[Container] = []
    for key, kind in kinds.items():
        items = spec.get(key)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            resources = item.get("resources") if isinstance(item, dict) else None
            limits, requests = (
                _readable(resources.get(part) if isinstance(resources, dict) else None)
                for part in ("limits", "requests")
            )
            found.append(Container(f"{key}[{index}]", kind, requests=limits | requests, limits=limits))
    return tuple(found)


def _readable(values: object) -> dict[str, int]:
    readable: dict[str, int] = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        # bool is an int in Python, but not a quantity.
        if isinstance(name, str) and isinstance(value, str | int | float) and not isinstance(value, bool):
            try:
                readable |= requested({name: value}, FieldPath(""))
            except WireError:
                continue  # the problem is recorded, and this amount cannot be counted
    return readable


_NO_RESOURCES = ContainerResources()
_NO_POLICIES = (CpuBind(), NumaSpec())
