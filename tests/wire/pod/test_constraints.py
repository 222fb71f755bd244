"""Requirements of a pod's spec on nodes."""

from typing import Any

from koord_numa.core.objects.constraints import (
    Constraints,
    DiskKind,
    HostPort,
    InlineDisk,
    LabelSelector,
    NodeTerm,
    Operator,
    PodTerm,
    PreferredNodeTerm,
    PreferredPodTerm,
    Requirement,
    SpreadConstraint,
    Toleration,
)
from koord_numa.wire import parse_pod
from tests.tables import each_row
from tests.wire.objects import POD, annotated, changed

WEB = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
NEAR = "requiredDuringSchedulingIgnoredDuringExecution"
RATHER = "preferredDuringSchedulingIgnoredDuringExecution"


def constraints(labels: dict[str, str] | None = None, **spec: Any) -> Constraints:
    """The demands of a pod with nothing but this spec."""
    metadata = {"name": "web", "namespace": "shop", "uid": "u1", "labels": labels or {}}
    pod = parse_pod({"metadata": metadata, "spec": spec})
    assert pod.problem == ""
    return pod.request.constraints


def test_all_demands_of_a_whole_pod() -> None:
    assert parse_pod(POD).request.constraints == Constraints(
        node_selector=(("disk", "ssd"),),
        node_terms=(NodeTerm(labels=(Requirement("zone", Operator.IN, ("a", "b")),)),),
        preferred_nodes=(PreferredNodeTerm(3, NodeTerm(labels=(Requirement("fast", Operator.EXISTS),))),),
        tolerations=(Toleration(key="numa", exists=True, effect="NoSchedule"),),
        anti_affinity=(PodTerm("kubernetes.io/hostname", WEB, ("shop",)),),
        spread=(SpreadConstraint("zone", 2, hard=False, selector=WEB),),
        host_ports=(HostPort(8080),),
        claims=("data",),
    )


def test_a_pod_without_demands() -> None:
    assert constraints() == Constraints()


def test_pods_of_one_workload_share_one_value() -> None:
    twin = changed(POD, "metadata name", "twin")
    assert parse_pod(POD).request.constraints is parse_pod(twin).request.constraints


def term(**more: Any) -> dict[str, Any]:
    """A required pod affinity term."""
    return {"podAffinity": {NEAR: [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}, **more}]}}


POD_TERMS: dict[str, tuple[dict[str, Any], PodTerm]] = {
    "own namespace": (term(), PodTerm("zone", WEB, ("shop",))),
    "named namespaces": (term(namespaces=["b", "a", "b"]), PodTerm("zone", WEB, ("a", "b"))),
    "namespaces by label": (
        term(namespaceSelector={"matchLabels": {"team": "x"}}),
        PodTerm("zone", WEB, (), LabelSelector((Requirement("team", Operator.IN, ("x",)),))),
    ),
    "every namespace": (term(namespaceSelector={}), PodTerm("zone", WEB, (), LabelSelector())),
    "no selector matches nothing": (term(labelSelector=None), PodTerm("zone", None, ("shop",))),
    "empty selector matches all": (term(labelSelector={}), PodTerm("zone", LabelSelector(), ("shop",))),
    "own label values folded in": (
        term(matchLabelKeys=["hash", "absent"]),
        PodTerm("zone", LabelSelector((*WEB.requirements, Requirement("hash", Operator.IN, ("7f",)))), ("shop",)),
    ),
    "own label values kept away": (
        term(mismatchLabelKeys=["hash"]),
        PodTerm("zone", LabelSelector((*WEB.requirements, Requirement("hash", Operator.NOT_IN, ("7f",)))), ("shop",)),
    ),
    "folded in by the API server already": (
        term(
            matchLabelKeys=["hash"],
            labelSelector={"matchExpressions": [{"key": "hash", "operator": "In", "values": ["7f"]}]},
        ),
        PodTerm("zone", LabelSelector((Requirement("hash", Operator.IN, ("7f",)),)), ("shop",)),
    ),
}


@each_row(("affinity", "expected"), POD_TERMS.values(), ids=POD_TERMS.keys())
def test_pod_terms(affinity: dict[str, Any], expected: PodTerm) -> None:
    assert constraints({"hash": "7f"}, affinity=affinity).affinity == (expected,)


def test_preferred_terms() -> None:
    pod_term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    found = constraints(
        affinity={
            "podAffinity": {RATHER: [{"weight": 5, "podAffinityTerm": pod_term}]},
            "podAntiAffinity": {RATHER: [{"weight": 100, "podAffinityTerm": pod_term}]},
            "nodeAffinity": {RATHER: [{"weight": 1, "preference": {}}]},
        }
    )
    assert found == Constraints(
        preferred_affinity=(PreferredPodTerm(5, PodTerm("zone", WEB, ("shop",))),),
        preferred_anti_affinity=(PreferredPodTerm(100, PodTerm("zone", WEB, ("shop",))),),
    )


def test_node_affinity_by_field() -> None:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}, {}]
    assert constraints(affinity={"nodeAffinity": {NEAR: {"nodeSelectorTerms": terms}}}).node_terms == (
        NodeTerm(fields=(Requirement("metadata.name", Operator.IN, ("n",)),)),
        NodeTerm(),
    )


def test_every_detail_of_a_spread_constraint() -> None:
    model = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
        "minDomains": 3,
        "nodeAffinityPolicy": "Ignore",
        "nodeTaintsPolicy": "Honor",
        "matchLabelKeys": ["hash"],
    }
    assert constraints({"hash": "7f"}, topologySpreadConstraints=[model]).spread == (
        SpreadConstraint(
            topology_key="zone",
            max_skew=1,
            hard=True,
            selector=LabelSelector((*WEB.requirements, Requirement("hash", Operator.IN, ("7f",)))),
            min_domains=3,
            honor_affinity=False,
            honor_taints=True,
        ),
    )


def port(**fields: Any) -> list[dict[str, Any]]:
    """A container with one port."""
    return [{"name": "c", "ports": [fields]}]


PORTS: dict[str, tuple[dict[str, Any], tuple[HostPort, ...]]] = {
    "container port alone": ({"containers": port(containerPort=80)}, ()),
    "host port": ({"containers": port(containerPort=80, hostPort=80)}, (HostPort(80),)),
    "all details": (
        {"containers": port(containerPort=1, hostPort=2, protocol="UDP", hostIP="10.0.0.1")},
        (HostPort(2, "UDP", "10.0.0.1"),),
    ),
    "on the host's network": ({"hostNetwork": True, "containers": port(containerPort=80)}, (HostPort(80),)),
    "sidecar": ({"initContainers": [port(hostPort=9)[0] | {"restartPolicy": "Always"}]}, (HostPort(9),)),
    "init container": ({"initContainers": port(hostPort=9)}, ()),
}


@each_row(("spec", "expected"), PORTS.values(), ids=PORTS.keys())
def test_host_ports(spec: dict[str, Any], expected: tuple[HostPort, ...]) -> None:
    assert constraints(**spec).host_ports == expected


def test_volumes() -> None:
    found = constraints(
        volumes=[
            {"name": "a", "persistentVolumeClaim": {"claimName": "z"}},
            {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
            {"name": "c", "emptyDir": {}},
            {"name": "d", "iscsi": {"iqn": "iqn.2016-12.server:one", "readOnly": True}},
            {"name": "g", "rbd": {"monitors": ["m"], "pool": "p", "image": "i"}},
            {"name": "h", "azureFile": {"secretName": "s", "shareName": "s"}},
            {"name": "e", "quantumDisk": {}},
            {"name": "f", "csi": {}, "iscsi": None},
        ]
    )
    assert found == Constraints(
        claims=("web-b", "z"),
        ephemeral=(("web-b", "u1"),),
        disks=(
            InlineDisk(DiskKind.ISCSI, "iqn.2016-12.server:one", read_only=True),
            InlineDisk(DiskKind.RBD, "p/i", monitors=frozenset({"m"})),
        ),
        unsupported=("volume e of kind quantumDisk",),
    )


def test_features_of_koordinator_that_we_lack_are_said() -> None:
    pod = parse_pod(annotated(POD, "scheduling.koordinator.sh/reservation-affinity", "{}"))
    assert len(pod.request.constraints.unsupported) == 1


BROKEN: dict[str, tuple[str, Any, str]] = {
    "operator": (
        f"spec affinity nodeAffinity {NEAR} nodeSelectorTerms",
        [{"matchExpressions": [{"key": "a", "operator": "Like"}]}],
        'nodeAffinity.matchExpressions.a: "Like" is none of DoesNotExist, Exists, Gt, In, Lt, NotIn',
    ),
    "weight": (
        f"spec affinity nodeAffinity {RATHER} 0 weight",
        0,
        f"spec.affinity.nodeAffinity.{RATHER}[0].weight: 0 is below 1, the least that is allowed",
    ),
    "skew": ("spec topologySpreadConstraints 0 maxSkew", 0, "topologySpreadConstraints[0].maxSkew: 0 is below 1"),
    "when": (
        "spec topologySpreadConstraints 0 whenUnsatisfiable",
        "Later",
        '"Later" is none of DoNotSchedule, ScheduleAnyway',
    ),
    "effect": ("spec tolerations 0 effect", "No", '"No" is none of NoExecute, NoSchedule, PreferNoSchedule'),
}


@each_row(("path", "value", "problem"), BROKEN.values(), ids=BROKEN.keys())
def test_malformed_demands(path: str, value: Any, problem: str) -> None:
    pod = parse_pod(changed(POD, path, value))
    assert problem in pod.problem
    assert pod.request.constraints == Constraints()
