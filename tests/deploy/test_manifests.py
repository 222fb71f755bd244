"""The kustomize base and the Helm chart: complete, safe, equal where they must be, and configurable as operators expect."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord_numa.app.api import PATHS
from koord_numa.cluster.serving import OPEN_PATHS
from koord_numa.settings import Settings, load_settings
from tests.tables import each_row

DEPLOY = Path(__file__).parents[2] / "deploy"
CRDS = DEPLOY.parent / "crds"
BASE = DEPLOY / "kustomize" / "base"
CHART = DEPLOY / "chart" / "koord-numa"
TOPOLOGY_CRD = DEPLOY / "kustomize" / "topology-crd"
Manifest = dict[str, Any]


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where it is built: ten times as fast


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.load_all(text, LOADER) if document]


@cache
def loaded_chart() -> Any:
    helm = pytest.importorskip("helm_python", reason="Helm's library is not installed on this platform")
    return helm.Chart.load(CHART)


def rendered(values: dict[str, Any] | None = None, name: str = "rack", namespace: str = "scheduling") -> list[Manifest]:
    """The chart as Helm itself renders it."""
    templates = loaded_chart().render(values or {}, name=name, namespace=namespace)
    return [
        manifest for name, text in sorted(templates.items()) if name.endswith(".yaml") for manifest in documents(text)
    ]


def of_kind(manifests: list[Manifest], kind: str) -> Manifest:
    return next(manifest for manifest in manifests if manifest["kind"] == kind)


def base(file: str) -> list[Manifest]:
    return documents((BASE / file).read_text())


def pod_spec(deployment: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return spec


def test_the_chart_carries_everything() -> None:
    kinds = sorted(manifest["kind"] for manifest in rendered())
    assert kinds == [
        "ClusterRole",
        "ClusterRole",
        "ClusterRole",
        "ClusterRole",
        "ClusterRole",
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "Deployment",
        "Namespace",
        "NetworkPolicy",
        "Pod",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    ]


@pytest.mark.parametrize("kind", ["ClusterRole", "Role"])
def test_chart_and_base_grant_the_same(kind: str) -> None:
    assert of_kind(rendered(), kind)["rules"] == of_kind(base("rbac.yaml"), kind)["rules"]


@each_row(
    ("config", "claims", "makes_claims"),
    [
        ({}, True, True),
        ({"featureGates": {"DRAAdminAccess": False}}, True, True),
        ({"featureGates": {"DRAExtendedResource": False}}, True, False),
        ({"dynamicResources": "Off"}, False, False),
    ],
)
def test_rights_on_claims_are_granted_where_they_are_used(
    config: dict[str, Any], claims: bool, makes_claims: bool
) -> None:
    rules = of_kind(rendered({"config": config}), "ClusterRole")["rules"]
    verbs = {verb for rule in rules if "resourceclaims" in rule["resources"] for verb in rule["verbs"]}
    assert ("update" in verbs) is claims
    assert ({"create", "delete"} <= verbs) is makes_claims
    assert any("pods/finalizers" in rule["resources"] for rule in rules) is makes_claims


def user_roles(manifests: list[Manifest]) -> dict[str, Manifest]:
    """Aggregated roles by the level that they are named after."""
    roles = [m for m in manifests if m["kind"] == "ClusterRole" and "-" in m["metadata"]["name"].removeprefix("rack-")]
    return {m["metadata"]["name"].rpartition("-")[2]: m for m in roles if m["metadata"]["name"].endswith(LEVELS)}


LEVELS = ("view", "edit", "admin")


@pytest.mark.parametrize("source", ["chart", "kustomize"])
def test_people_get_rights_by_the_clusters_own_roles(source: str) -> None:
    roles = user_roles(rendered() if source == "chart" else base("user-roles.yaml"))
    aggregated = {
        level: [
            name for name in LEVELS if f"rbac.authorization.k8s.io/aggregate-to-{name}" in role["metadata"]["labels"]
        ]
        for level, role in roles.items()
    }
    assert aggregated == {"view": [*LEVELS], "edit": ["edit", "admin"], "admin": ["admin"]}
    verbs = {level: {verb for rule in role["rules"] for verb in rule["verbs"]} for level, role in roles.items()}
    assert verbs["view"] == {"get", "list", "watch"}
    assert {"create", "delete"} <= verbs["edit"]
    assert not any(
        "status" in resource for role in roles.values() for rule in role["rules"] for resource in rule["resources"]
    )


def test_the_roles_for_people_can_be_left_out() -> None:
    assert not user_roles(rendered({"rbac": {"userRoles": False}}))


@each_row(
    ("values", "expected"),
    [
        ({}, []),
        ({"admissionPolicy": {"enabled": True}}, ["Ignore"]),
        ({"admissionPolicy": {"enabled": True, "failurePolicy": "Fail"}}, ["Fail"]),
        ({"podAuthorPolicy": {"enabled": True}}, ["Ignore"]),
    ],
    ids=["default", "admissionPolicy", "Fail", "podAuthorPolicy"],
)
def test_admission_policies_are_chosen(values: dict[str, Any], expected: list[str]) -> None:
    policies = [manifest for manifest in rendered(values) if manifest["kind"] == "ValidatingAdmissionPolicy"]
    assert [policy["spec"]["failurePolicy"] for policy in policies] == expected


@pytest.mark.parametrize("where", [(BASE / "crds", TOPOLOGY_CRD), (CHART / "crds",)], ids=["kustomize", "chart"])
def test_definitions_are_those_of_the_project(where: tuple[Path, ...]) -> None:
    ours = {file.name: file.read_text() for file in CRDS.glob("*.yaml")}
    found = {file.name: file.read_text() for folder in where for file in folder.glob("*.yaml")}
    found.pop("kustomization.yaml", None)
    assert found == ours


def test_deleting_the_scheduler_leaves_topologies() -> None:
    assert not (BASE / "crds" / "noderesourcetopologies.yaml").exists()
    assert (
        "helm.sh/resource-policy" not in (CHART / "crds" / "noderesourcetopologies.yaml").read_text()
    )  # crds/ stay anyway


@pytest.mark.parametrize("source", ["chart", "kustomize"])
def test_server_side_apply_finds_every_defaulted_field(source: str) -> None:
    deployment = of_kind(rendered(), "Deployment") if source == "chart" else base("deployment.yaml")[0]
    references = [
        variable["valueFrom"]["fieldRef"]
        for variable in pod_spec(deployment)["containers"][0]["env"]
        if "valueFrom" in variable
    ]
    assert references
    assert all(reference["apiVersion"] == "v1" for reference in references)


@pytest.mark.parametrize("profiles", [None, [{}]], ids=["null", "without a name"])
def test_notes_do_without_profiles(profiles: object) -> None:
    config = {"apiVersion": "koord-numa.io/v1alpha1", "kind": "KoordNumaConfiguration", "profiles": profiles}
    helm = pytest.importorskip("helm_python", reason="Helm's library is not installed on this platform")
    notes = helm.Chart.load(CHART).render({"config": config}, name="rack", namespace="scheduling")
    assert any("schedulerName: koord-numa" in text for name, text in notes.items() if name.endswith("NOTES.txt"))


def test_every_release_keeps_its_lease_in_one_place() -> None:
    manifests = rendered()
    assert of_kind(manifests, "Namespace")["metadata"]["name"] == Settings().lease.namespace
    assert {of_kind(manifests, kind)["metadata"]["namespace"] for kind in ("Role", "RoleBinding")} == {"koord-numa"}
    assert "POD_NAMESPACE" not in str(of_kind(manifests, "Deployment"))
    elsewhere = {
        "apiVersion": "koord-numa.io/v1alpha1",
        "kind": "KoordNumaConfiguration",
        "lease": {"namespace": "scheduling"},
    }
    own = rendered({"config": elsewhere})
    assert not [manifest for manifest in own if manifest["kind"] == "Namespace"]
    assert of_kind(own, "Role")["metadata"]["namespace"] == "scheduling"


@pytest.mark.parametrize("source", ["chart", "kustomize"])
def test_the_scheduler_is_safe_and_twofold(source: str) -> None:
    deployment = of_kind(rendered(), "Deployment") if source == "chart" else base("deployment.yaml")[0]
    spec = pod_spec(deployment)
    assert deployment["spec"]["replicas"] == 2
    assert spec["priorityClassName"] == "system-cluster-critical"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/readyz"


@pytest.mark.parametrize("source", ["chart", "kustomize"])
def test_the_configuration_is_one_that_the_scheduler_reads(source: str) -> None:
    config = of_kind(rendered(), "ConfigMap") if source == "chart" else {}
    text = config["data"]["config.yaml"] if config else (BASE / "config.yaml").read_text()
    assert load_settings(text).scheduler_names == ("koord-numa",)


@each_row(
    ("values", "path", "expected"),
    [
        ({"nodeSelector": {"a": "b"}}, ("nodeSelector",), {"a": "b"}),
        ({"tolerations": [{"operator": "Exists"}]}, ("tolerations",), [{"operator": "Exists"}]),
        ({"affinity": {"nodeAffinity": {}}}, ("affinity",), {"nodeAffinity": {}}),
        ({"priorityClassName": "high"}, ("priorityClassName",), "high"),
        ({"imagePullSecrets": [{"name": "s"}]}, ("imagePullSecrets",), [{"name": "s"}]),
        ({"serviceAccount": {"create": False, "name": "mine"}}, ("serviceAccountName",), "mine"),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, ("topologySpreadConstraints",), [{"maxSkew": 1}]),
        ({"fullnameOverride": "numa"}, ("serviceAccountName",), "numa"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) and value else None,
)
def test_pods_of_the_chart_can_be_placed_as_operators_choose(
    values: dict[str, Any], path: tuple[str, ...], expected: object
) -> None:
    found: Any = pod_spec(of_kind(rendered(values), "Deployment"))
    for step in path:
        found = found[step]
    assert found == expected


EXTRAS: dict[str, Any] = {
    "extraArgs": ["--log-level=debug"],
    "extraEnv": [{"name": "A", "value": "1"}],
    "extraVolumes": [{"name": "extra", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("Deployment", EXTRAS),
        ("DaemonSet", {"nodeAgent": {"enabled": True, **EXTRAS}}),
        ("DaemonSet", {"nodeAgent": {"enabled": True, "apply": {"enabled": True, "interrupts": True}, **EXTRAS}}),
    ],
    ids=["scheduler", "node-agent", "applying"],
)
def test_extras_come_last(kind: str, values: dict[str, Any]) -> None:
    spec = pod_spec(of_kind(rendered(values), kind))
    [container] = spec["containers"]
    lists = (container["args"], container["env"], spec["volumes"], container["volumeMounts"])
    assert [found[-1] for found in lists] == [extra[0] for extra in EXTRAS.values()]
    without = pod_spec(of_kind(rendered(without_extras(values)), kind))
    assert [len(found) - 1 for found in lists] == [
        len(without["containers"][0]["args"]),
        len(without["containers"][0]["env"]),
        len(without["volumes"]),
        len(without["containers"][0]["volumeMounts"]),
    ]


def without_extras(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: without_extras(value) if key == "nodeAgent" else value
        for key, value in values.items()
        if not key.startswith("extra")
    }


def test_helm_test_needs_a_decision_and_an_answer() -> None:
    manifests = rendered({"service": {"port": 443}, "config": {"profiles": [{"schedulerName": "pack"}]}})
    pod, service = of_kind(manifests, "Pod"), of_kind(manifests, "Service")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["schedulerName"] == "pack"
    [container] = pod["spec"]["containers"]
    address = f"https://{service['metadata']['name']}.{service['metadata']['namespace']}.svc:443/healthz"
    assert container["command"][-1] == address
    assert "/healthz" in OPEN_PATHS
    compile(container["command"][2], "helm test", "exec")


def test_an_image_can_be_pinned_by_digest() -> None:
    digest = "sha256:" + "0" * 64
    spec = pod_spec(of_kind(rendered({"image": {"digest": digest}}), "Deployment"))
    assert spec["containers"][0]["image"] == f"ghcr.io/koord-numa/koord-numa@{digest}"


def test_several_profiles_and_a_lease_reach_config_and_rights() -> None:
    config = {
        "apiVersion": "koord-numa.io/v1alpha1",
        "kind": "KoordNumaConfiguration",
        "profiles": [{"schedulerName": "pack"}, {"schedulerName": "spread"}],
        "lease": {"name": "other"},
    }
    manifests = rendered({"config": config})
    assert load_settings(of_kind(manifests, "ConfigMap")["data"]["config.yaml"]).scheduler_names == ("pack", "spread")
    assert of_kind(manifests, "Role")["rules"][1]["resourceNames"] == ["other"]


def test_optional_parts() -> None:
    agent = {"enabled": True, "podMonitor": {"enabled": True}}
    off = {"podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False}}
    kinds = {m["kind"] for m in rendered({"serviceMonitor": {"enabled": True}, "nodeAgent": agent, **off})}
    assert {"ServiceMonitor", "PodMonitor"} <= kinds
    assert not {"PodDisruptionBudget", "NetworkPolicy"} & kinds
    assert [m["kind"] for m in rendered({"nodeAgent": agent})].count("NetworkPolicy") == 2


def test_chart_and_base_let_the_same_peers_in() -> None:
    spec = of_kind(base("networkpolicy.yaml"), "NetworkPolicy")["spec"]
    assert spec["ingress"] == of_kind(rendered(), "NetworkPolicy")["spec"]["ingress"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["podSelector"] == of_kind(base("poddisruptionbudget.yaml"), "PodDisruptionBudget")["spec"]["selector"]


def test_unknown_values_are_refused() -> None:
    helm = pytest.importorskip("helm_python", reason="Helm's library is not installed on this platform")
    chart = helm.Chart.load(CHART)
    with pytest.raises(helm.HelmError, match="replicaCount"):
        chart.validate_schema({"replicaCount": 3})


def test_everything_that_is_served_can_be_granted() -> None:
    """The role for monitoring names each path of the secure port, in chart and base alike."""
    roles = [
        each for each in (*rendered(), *base("user-roles.yaml")) if each["metadata"]["name"].endswith("-monitoring")
    ]
    [chart, kustomize] = [role["rules"] for role in roles]
    assert chart == kustomize
    patterns = [pattern.removesuffix("*") for pattern in chart[0]["nonResourceURLs"]]
    paths = {"/", "/metrics", "/metrics/nodes", "/nodes/n", "/pods/ns/p", "/api/v1", *PATHS}
    assert [
        path for path in paths if not any(path == one or (one != "/" and path.startswith(one)) for one in patterns)
    ] == []
