"""The clients that people use, unmodified: kubernetes-asyncio, Kopf, kubectl."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kopf
import pytest
import yaml
from kubernetes_asyncio import client, config, watch

from koord_numa.sandbox.apiserver import ApiServer
from tests.cluster.objects import PATIENCE
from tests.sandbox.apiserver.client import binding, configmap, crd, node, pod, rack

KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="no kubectl on the PATH")


@pytest.fixture
async def kube(server: ApiServer, tmp_path: Path) -> AsyncIterator[client.ApiClient]:
    """kubernetes-asyncio, configured by the server's kubeconfig."""
    file = server.write_kubeconfig(tmp_path / "kubeconfig")
    loaded = client.Configuration()
    await config.load_kube_config(config_file=str(file), client_configuration=loaded)
    async with client.ApiClient(loaded) as connected:
        yield connected


async def test_typed_models(kube: client.ApiClient) -> None:
    core: Any = client.CoreV1Api(kube)  # its type hints refuse the dictionaries that it takes
    await core.create_node(node(capacity={"cpu": "8"}))
    created = await core.create_namespaced_pod("default", pod())
    await core.create_namespaced_pod_binding(
        "p", "default", binding("p", "n1", uid=created.metadata.uid), _preload_content=False
    )
    read = await core.read_namespaced_pod("p", "default")
    listed = await core.list_pod_for_all_namespaces(field_selector="spec.nodeName=n1")
    deleted = await core.delete_namespaced_pod("p", "default")
    assert (read.spec.node_name, read.status.qos_class) == ("n1", "BestEffort")
    assert [one.metadata.name for one in listed.items] == ["p"]
    assert deleted.metadata.deletion_timestamp is not None


async def test_api_exceptions(kube: client.ApiClient) -> None:
    core = client.CoreV1Api(kube)
    with pytest.raises(client.ApiException) as caught:
        await core.read_namespaced_pod("absent", "default")
    assert (caught.value.status, caught.value.reason) == (404, "Not Found")


async def test_its_watch(kube: client.ApiClient, server: ApiServer) -> None:
    core = client.CoreV1Api(kube)
    seen = []
    async with asyncio.timeout(PATIENCE), watch.Watch() as watching:
        async for event in watching.stream(core.list_namespaced_config_map, "default", timeout_seconds=5):
            seen.append((event["type"], event["object"].metadata.name))
            if len(seen) == 2:
                break
            server.store.delete("configmaps", "a")
    assert seen == [("ADDED", "a"), ("DELETED", "a")]


@pytest.fixture(autouse=True)
def one_configmap(server: ApiServer) -> None:
    """Something to look at."""
    server.store.create(configmap("a", x="1"))


async def test_custom_objects(kube: client.ApiClient, server: ApiServer) -> None:
    server.store.create(crd())
    custom: Any = client.CustomObjectsApi(kube)  # its type hints lack the underscored options that it takes
    await custom.create_namespaced_custom_object("example.com", "v1", "default", "racks", rack())
    patched = await custom.patch_namespaced_custom_object_status(
        "example.com",
        "v1",
        "default",
        "racks",
        "r1",
        {"status": {"phase": "Ready"}},
        _content_type="application/merge-patch+json",
    )
    assert patched["status"] == {"phase": "Ready"}


async def test_leases(kube: client.ApiClient) -> None:
    api = client.CoordinationV1Api(kube)
    spec = client.V1LeaseSpec(holder_identity="a", lease_duration_seconds=15)
    created = await api.create_namespaced_lease(
        "default", client.V1Lease(metadata=client.V1ObjectMeta(name="l"), spec=spec)
    )
    created.spec.holder_identity = "b"
    await api.replace_namespaced_lease("l", "default", created)
    with pytest.raises(client.ApiException) as caught:
        await api.replace_namespaced_lease("l", "default", created)
    assert caught.value.status == 409


async def test_kopf_watches_and_patches(server: ApiServer) -> None:
    server.store.create(crd())
    registry = kopf.OperatorRegistry()
    seen: asyncio.Queue[tuple[Any, str]] = asyncio.Queue()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=server.url)

    @kopf.on.event("v1", "configmaps", registry=registry)
    async def changed(type: Any, name: str, **_: Any) -> None:  # noqa: A002  (Kopf's word)
        await seen.put((type, name))

    @kopf.on.create("example.com", "v1", "racks", registry=registry)
    async def created(patch: kopf.Patch, **_: Any) -> None:
        patch.status["phase"] = "Seen"

    stop, ready = asyncio.Event(), asyncio.Event()
    operator = asyncio.create_task(
        kopf.operator(registry=registry, clusterwide=True, standalone=True, stop_flag=stop, ready_flag=ready)
    )
    phases: asyncio.Queue[str] = asyncio.Queue()
    subscription = server.store.subscribe(
        "racks.example.com", lambda _, found: phases.put_nowait(found.get("status", {}).get("phase", ""))
    )
    try:
        async with asyncio.timeout(PATIENCE):
            await ready.wait()
            assert await seen.get() == (None, "a")
            server.store.create(configmap("b"))
            assert await seen.get() == ("ADDED", "b")
            server.store.delete("configmaps", "b")
            assert await seen.get() == ("DELETED", "b")
            server.store.create(rack())
            while await phases.get() != "Seen":
                pass
    finally:
        subscription.cancel()
        stop.set()
        await operator


async def run(server: ApiServer, folder: Path, *arguments: str, stdin: str = "") -> str:
    """Run kubectl; returns what it prints. Its caches stay in ``folder``."""
    assert KUBECTL is not None
    file = server.write_kubeconfig(folder / "kubeconfig")
    command = (KUBECTL, "--kubeconfig", str(file), "--cache-dir", str(folder / "cache"), *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    async with asyncio.timeout(PATIENCE):
        printed, _ = await process.communicate(stdin.encode())
    return printed.decode()


@pytest.mark.e2e
@needs_kubectl
async def test_kubectl_applies_twice_and_deletes(server: ApiServer, tmp_path: Path) -> None:
    documents = yaml.safe_dump_all([crd(), pod(), node(capacity={"cpu": "8"})])
    first = await run(server, tmp_path, "apply", "-f", "-", stdin=documents)
    second = await run(server, tmp_path, "apply", "-f", "-", stdin=documents)
    resource = await run(server, tmp_path, "apply", "-f", "-", stdin=yaml.safe_dump(rack(size=3)))
    assert first.splitlines() == [
        "customresourcedefinition.apiextensions.k8s.io/racks.example.com created",
        "pod/p created",
        "node/n1 created",
    ]
    assert second == first.replace("created", "unchanged")
    assert resource == "rack.example.com/r1 created\n"
    table = await run(server, tmp_path, "get", "racks", "--no-headers")
    assert table.split() == ["r1", "3"]
    assert (
        await run(server, tmp_path, "delete", "pod/p", "rack/r1") == 'pod "p" deleted\nrack.example.com "r1" deleted\n'
    )
    assert server.store.list("pods") == []


@pytest.mark.e2e
@needs_kubectl
async def test_kubectl_applies_a_kustomization(server: ApiServer, tmp_path: Path) -> None:
    base = str(Path(__file__).parents[3] / "deploy/kustomize/base")
    printed = await run(server, tmp_path, "apply", "-k", base)
    assert {line.rsplit(" ", 1)[1] for line in printed.splitlines()} == {"created"}, printed
    printed = await run(server, tmp_path, "get", "-k", base, "-o", "name")
    assert "deployment.apps/koord-numa" in printed.splitlines()


@pytest.mark.e2e
@needs_kubectl
async def test_kubectl_shows_mistakes(server: ApiServer, tmp_path: Path) -> None:
    server.store.create(crd())
    printed = await run(server, tmp_path, "apply", "-f", "-", stdin=yaml.safe_dump(rack(size=0)))
    assert "spec.size in body should be greater than or equal to 1" in printed
    printed = await run(server, tmp_path, "apply", "-f", "-", stdin=yaml.safe_dump(rack(colour="red")))
    assert 'unknown field "spec.colour"' in printed


@pytest.mark.e2e
@needs_kubectl
async def test_kubectl_describes(server: ApiServer, tmp_path: Path) -> None:
    server.store.create(node(capacity={"cpu": "8"}))
    created = server.store.create(pod(nodeName="n1"))
    about = {"kind": "Pod", "namespace": "default", "name": "p", "uid": created["metadata"]["uid"], "apiVersion": "v1"}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"}, "type": "Warning"}
    server.store.create(
        {
            **event,
            "involvedObject": about,
            "reason": "FailedScheduling",
            "message": "no room",
            "source": {"component": "koord-numa"},
        }
    )
    described = await run(server, tmp_path, "describe", "pod", "p")
    assert "FailedScheduling" in described
    assert "no room" in described
    assert "default                     p" in await run(server, tmp_path, "describe", "node", "n1")


@pytest.mark.e2e
@needs_kubectl
async def test_kubectl_edits_and_explains(server: ApiServer, tmp_path: Path) -> None:
    server.store.create(crd())
    server.store.create(node())
    for arguments in (("label", "node", "n1", "a=b"), ("taint", "node", "n1", "k=v:NoSchedule"), ("cordon", "n1")):
        await run(server, tmp_path, *arguments)
    found = server.store.get("nodes", "n1")
    assert found["metadata"]["labels"] == {"a": "b"}
    assert [taint["key"] for taint in found["spec"]["taints"]] == ["k"]
    assert found["spec"]["unschedulable"] is True
    assert "-required-" in await run(server, tmp_path, "explain", "rack.spec")
    explained = await run(server, tmp_path, "explain", "pod.spec.containers.resources")
    assert "FIELD: resources <ResourceRequirements>" in explained
    assert "limits\t<map[string]string>" in explained


@pytest.mark.e2e
@needs_kubectl
async def test_kubectl_creates_and_drains(server: ApiServer, tmp_path: Path) -> None:
    server.store.create(node())
    server.store.create(pod(nodeName="n1", terminationGracePeriodSeconds=0))
    assert await run(server, tmp_path, "create", "namespace", "team") == "namespace/team created\n"
    # Newer clients send these in protobuf.
    command = ("--image=img", "--port=80", "--", "sleep", "1")
    assert await run(server, tmp_path, "create", "deployment", "d", *command) == "deployment.apps/d created\n"
    assert await run(server, tmp_path, "create", "job", "j", "--image=img") == "job.batch/j created\n"
    found = server.store.get("deployments.apps", "d", "default")["spec"]
    assert found["selector"] == {"matchLabels": {"app": "d"}}
    assert found["template"]["spec"]["containers"][0]["command"] == ["sleep", "1"]
    assert await run(server, tmp_path, "auth", "can-i", "create", "pods") == "yes\n"
    assert "node/n1 drained" in await run(server, tmp_path, "drain", "n1", "--force")
    assert server.store.list("pods") == []
