"""Every way of installing, as it is built: all manifests are applied, and the scheduler runs with the rights of its account only."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import pytest
import yaml
from click.testing import CliRunner

from koord_numa.cli import main
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.machines.description import read_descriptions
from koord_numa.sandbox.machines.simulated_node import Fleet
from koord_numa.settings import Settings, load_settings
from tests.cluster.objects import until
from tests.deploy.test_chart_values import ALL_PARTS
from tests.deploy.test_manifests import CHART, DEPLOY, Manifest, documents, of_kind, pod_spec, rendered
from tests.e2e.world import pinned
from tests.operator.operating import ONE_PAIR, operating

KUSTOMIZE: Final = DEPLOY / "kustomize"
COMPONENTS: Final = sorted(path.name for path in (KUSTOMIZE / "components").iterdir())
LEASES: Final = "leases.coordination.k8s.io"
ACCOUNT: Final = "system:serviceaccount"


def build(folder: Path) -> list[Manifest]:
    """Return the manifests that ``kubectl apply -k`` applies."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on the PATH")
    built = subprocess.run(["kubectl", "kustomize", str(folder)], check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return documents(built.stdout)


@cache
def overlay(*components: str, text: str = "") -> list[Manifest]:
    """The base with these components and further lines of a kustomization."""
    with TemporaryDirectory() as folder:
        base = os.path.relpath(KUSTOMIZE, os.path.realpath(folder))
        listed = "".join(f"\n  - {base}/components/{name}" for name in components)
        lines = f"resources: [{base}/base]\n{'components:' if components else ''}{listed}\n{text}"
        (Path(folder) / "kustomization.yaml").write_text(lines)
        return build(Path(folder))


def chart(values: dict[str, Any] | None = None, name: str = "rack", namespace: str = "scheduling") -> list[Manifest]:
    """Return the manifests that ``helm install --create-namespace`` applies: definitions, the namespace, and the others."""
    definitions = [each for file in sorted((CHART / "crds").glob("*.yaml")) for each in documents(file.read_text())]
    created = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    installed = [each for each in rendered(values, name, namespace) if not is_hook(each)]
    return [*definitions, created, *installed]


def is_hook(manifest: Manifest) -> bool:
    """Return true if the manifest belongs to ``helm test``."""
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


CERTIFICATE: Final = {"tls": {"secretName": "certificate"}}
OPTIONS: Final = {
    "admissionPolicy": {"enabled": True},
    "nodeAgent": {
        "enabled": True,
        "configz": True,
        "apply": {"enabled": True, "memory": True},
        "podMonitor": {"enabled": True},
    },
    "serviceMonitor": {"enabled": True},
    "podAuthorPolicy": {"enabled": True},
}

PRODUCTION: Final = """
configMapGenerator:
  - name: koord-numa-config
    behavior: merge
    literals:
      - "config.yaml={profiles: [{schedulerName: other}], lease: {name: production}}"
patches:
  - target: {kind: Role, name: koord-numa}
    patch: '[{"op": "replace", "path": "/rules/1/resourceNames", "value": ["production"]}]'
"""
"""Another scheduler name and another Lease."""

INSTALLATIONS: Final[dict[str, Callable[[], list[Manifest]]]] = {
    "base": overlay,
    **{f"base with {name}": partial(overlay, name) for name in COMPONENTS},
    "base with all components": lambda: overlay(*COMPONENTS),
    "base with a prefix": lambda: overlay(text="namePrefix: rack-\n"),
    "base in production": lambda: overlay(text=PRODUCTION),
    "chart": chart,
    "chart with all options": lambda: chart({**OPTIONS, **CERTIFICATE}),
    "chart named like itself": lambda: chart(OPTIONS, "koord-numa", "koord-numa"),
    "chart of odd names": lambda: chart(ALL_PARTS, "123", "456"),
}


@pytest.fixture(params=list(INSTALLATIONS.values()), ids=list(INSTALLATIONS))
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    found: list[Manifest] = request.param()
    return found


def monitoring_kinds() -> Iterator[Manifest]:
    """The kinds of the Prometheus operator, which the chart and deploy/monitoring make objects of."""
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        names = {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower(), "listKind": f"{kind}List"}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{names['plural']}.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com",
                "names": names,
                "scope": "Namespaced",
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        }


async def apply(server: ApiServer, manifests: list[Manifest]) -> None:
    """Create every object over HTTP, namespaces and definitions first, as the administrator."""
    first = ("Namespace", "CustomResourceDefinition")
    ordered = sorted(manifests, key=lambda manifest: manifest["kind"] not in first)
    async with aiohttp.ClientSession(server.url) as session:
        for manifest in ordered:
            version, metadata = manifest["apiVersion"], manifest["metadata"]
            prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
            async with session.get(prefix) as answer:
                served = {each["kind"]: each for each in (await answer.json())["resources"] if "/" not in each["name"]}
            resource = served[manifest["kind"]]
            namespace = metadata.get("namespace", "default")
            place = f"{prefix}/namespaces/{namespace}" if resource["namespaced"] else prefix
            path = f"{place}/{resource['name']}?fieldValidation=Strict"
            async with session.post(path, json=manifest) as answer:
                if answer.status == 409 and manifest["kind"] in first:
                    continue
                assert answer.status == 201, await answer.text()


def configuration(manifests: list[Manifest]) -> Settings:
    """The configuration that the Deployment mounts."""
    (name,) = [volume["configMap"]["name"] for volume in volumes(manifests) if "configMap" in volume]
    (found,) = [each for each in manifests if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name]
    deployment = of_kind(manifests, "Deployment")
    assert found["metadata"]["namespace"] == deployment["metadata"]["namespace"]
    return load_settings(found["data"]["config.yaml"])


def volumes(manifests: list[Manifest]) -> list[Manifest]:
    found: list[Manifest] = pod_spec(of_kind(manifests, "Deployment"))["volumes"]
    return found


def account(manifests: list[Manifest], kind: str) -> str:
    """The user that the pods of this workload are."""
    workload = of_kind(manifests, kind)
    return f"{ACCOUNT}:{workload['metadata']['namespace']}:{pod_spec(workload)['serviceAccountName']}"


@asynccontextmanager
async def installed(manifests: list[Manifest]) -> AsyncIterator[ApiServer]:
    """A cluster in which everything was applied, with one machine."""
    topologies = (
        DEPLOY.parent / "crds" / "noderesourcetopologies.yaml"
    )  # Koordinator's, NFD's or deploy/kustomize/topology-crd
    async with ApiServer(crds=[topologies]) as server:
        for definition in monitoring_kinds():
            server.store.create(definition)
        await apply(server, manifests)
        yield server


def test_images_and_subjects_are_filled_in(manifests: list[Manifest]) -> None:
    image = pod_spec(of_kind(manifests, "Deployment"))["containers"][0]["image"]
    assert image == "ghcr.io/koord-numa/koord-numa:0.1.0"
    subjects = [subject for each in manifests for subject in each.get("subjects", ())]
    assert all(subject["namespace"] for subject in subjects)


@pytest.mark.e2e
async def test_the_scheduler_leads_and_places(
    manifests: list[Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, user = configuration(manifests), account(manifests, "Deployment")
    (profile,) = settings.scheduler_names
    async with installed(manifests) as server:
        rack = Fleet(server.store, read_descriptions(ONE_PAIR, tmp_path))
        rack.start()
        async with operating(server, tmp_path, monkeypatch, settings, user=user):
            server.store.create(pinned("fits", 2, scheduler=profile))
            server.store.create(pinned("waits", 400, scheduler=profile))
            await until(lambda: server.store.get("pods", "fits", "default")["spec"].get("nodeName") == "n")
            await until(lambda: server.store.get("pods", "waits", "default").get("status", {}).get("conditions"))
            await until(
                lambda: {event["regarding"]["name"] for event in scheduling_events(server)} == {"fits", "waits"}
            )
            lease = server.store.get(LEASES, settings.lease.name, settings.lease.namespace)
            assert lease["spec"]["holderIdentity"] == "me"
        rack.stop()
        refused = [asked for asked in server.requests if asked.status == 403]
        assert [str(asked) for asked in refused] == []
        assert {asked.user for asked in server.requests if "koord-numa" in asked.user_agent} == {user}


@pytest.mark.parametrize("source", ["base", "chart"])
async def test_readers_can_run_every_command(source: str, tmp_path: Path) -> None:
    """With the ClusterRole for readers alone: no command fails, and nothing is left out."""
    found = INSTALLATIONS[source]()
    (role,) = [each["metadata"]["name"] for each in found if each["metadata"]["name"].endswith("-reader")]
    async with installed(found) as server:
        server.store.create(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "readers"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "User", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}],
            }
        )
        rack = Fleet(server.store, read_descriptions(ONE_PAIR, tmp_path))
        rack.start()
        server.store.create(pinned("waits", 400))
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig", "reader")
        manifest = tmp_path / "pod.yaml"
        manifest.write_text(yaml.safe_dump(pinned("new", 2)))
        commands = (
            ("nodes",),
            ("node", "n"),
            ("explain", "waits"),
            ("simulate", "-f", str(manifest)),
            ("top",),
            ("snapshot", "-o", str(tmp_path / "snapshot.yaml")),
        )
        for command in commands:
            answer = await asyncio.to_thread(CliRunner().invoke, main, [*command, "--kubeconfig", str(kubeconfig)])
            assert (answer.exit_code, answer.stderr) == (0, ""), answer.output
        rack.stop()
        refused = {(asked.verb, asked.resource) for asked in server.requests if asked.status == 403}
        assert refused <= {("create", "pods")}  # the way to a running scheduler, which no command needs


def scheduling_events(server: ApiServer) -> list[Manifest]:
    reasons = ("Scheduled", "FailedScheduling")
    return [event for event in server.store.list("events.events.k8s.io") if event["reason"] in reasons]


async def test_rights_are_enforced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above notices a right that is missing: with the Role for another Lease no replica ever leads."""
    found = json.loads(json.dumps(chart()))
    of_kind(found, "Role")["rules"][1]["resourceNames"] = ["koord-numa-t2fcg7b2dd"]
    async with installed(found) as server:
        user = account(found, "Deployment")
        async with operating(server, tmp_path, monkeypatch, configuration(found), user=user) as runtime:
            await until(lambda: "403" in runtime.lease.problem)
            assert runtime.lease.problem


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_every_volume_of_ours_exists(manifests: list[Manifest], kind: str) -> None:
    made = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    for workload in (each for each in manifests if each["kind"] == kind):
        for volume in pod_spec(workload).get("volumes", ()):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in made
        assert ("ServiceAccount", pod_spec(workload)["serviceAccountName"]) in made


@pytest.mark.parametrize("name", ["base with all components", "chart with all options"])
def test_a_second_apply_by_another_manager_is_clean(name: str) -> None:
    """Server-side apply owns ``matchConstraints`` as a whole: every default of kube-apiserver is written in the manifest."""
    policies = [each for each in INSTALLATIONS[name]() if each["kind"] == "ValidatingAdmissionPolicy"]
    server = ApiServer()
    assert len(policies) == 2
    for policy in policies:
        assert server.store.create(policy)["spec"] == policy["spec"]


@pytest.mark.parametrize("folder", [KUSTOMIZE / "topology-crd", DEPLOY / "monitoring"], ids=lambda folder: folder.name)
async def test_everything_else_is_accepted(folder: Path) -> None:
    built = build(folder)
    async with ApiServer() as server:
        for definition in monitoring_kinds():
            server.store.create(definition)
        server.store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "koord-numa"}})
        await apply(server, built)
