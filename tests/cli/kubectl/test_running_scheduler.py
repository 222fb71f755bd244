"""``explain`` and ``nodes`` ask the scheduler that leads, through the API server, for its own record; else the objects answer."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from koord_numa.app.runtime import Runtime
from koord_numa.cli import main
from koord_numa.cluster.blocking import BlockingApi, PodConnection
from koord_numa.cluster.credentials import load_credentials
from koord_numa.ports import Forbidden, Gone
from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault
from koord_numa.wire.names import DEFAULT_PORT
from tests.cluster.objects import PATIENCE, until
from tests.e2e.world import JsonObject, World, pinned, world
from tests.operator.operating import ONE_PAIR, operating

BY_OBJECTS = "From the API objects, not from a running scheduler."


def deployed(name: str) -> JsonObject:
    """A pod of the scheduler's deployment."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "scheduling"},
        "spec": {"nodeName": "n", "containers": [{"name": "scheduler", "image": "i"}]},
    }


def in_default(name: str) -> JsonObject:
    found = deployed(name)
    return {**found, "metadata": {**found["metadata"], "namespace": "default"}}


@asynccontextmanager
async def scheduling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[World, Runtime]]:
    """A pod that runs and one that waits; the scheduler is the pod ``me`` and leads. It is given time to answer."""
    monkeypatch.setattr("koord_numa.cli.cluster.running.REACH_SECONDS", PATIENCE)
    async with world(folder, ONE_PAIR) as cluster:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "scheduling"}}
        cluster.create(
            [namespace, pinned("runs", 4, policy="SingleNUMANode"), pinned("wide", 12, policy="SingleNUMANode")]
        )
        async with operating(cluster.server, folder, monkeypatch) as runtime:
            await until(lambda: cluster.unbound() == ["wide"])
            await until(lambda: runtime.scheduler.queue.numbers().unschedulable == 1)
            await until(lambda: not runtime.scheduler.cache.assumed)
            cluster.create([deployed("me")])
            await until(lambda: len(runtime.scheduler.cache.node_of) == 2)
            port = runtime.http_server.port
            assert port is not None
            cluster.server.local_ports["scheduling", "me", DEFAULT_PORT] = port
            yield cluster, runtime


class FakeScheduler:
    """An HTTP server on loopback that answers every request with the same body."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aenter__(self) -> int:
        async def answer(_: web.BaseRequest) -> web.Response:
            return web.Response(body=self._body)

        self._runner = web.ServerRunner(web.Server(answer, max_line_size=2**17))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


async def explain(cluster: World, *arguments: str) -> Result:
    command = ["explain", *arguments, "--kubeconfig", str(cluster.kubeconfig)]
    return await asyncio.to_thread(CliRunner().invoke, main, command)


async def test_the_leader_answers_by_its_own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(tmp_path, monkeypatch) as (cluster, _):
        waiting, bound = await explain(cluster, "wide"), await explain(cluster, "runs")
        document = json.loads((await explain(cluster, "wide", "-o", "json")).output)
        objects = await explain(cluster, "wide", "--scheduler", "none")
        page = ["page", "-o", str(tmp_path / "page.html"), "--kubeconfig", str(cluster.kubeconfig)]
        written = await asyncio.to_thread(CliRunner().invoke, main, page)
    assert written.exit_code == 0
    html = (tmp_path / "page.html").read_text()
    assert '"scheduled":[1],"rejected":[1]' in html
    assert '"pod":"default/runs"' in html.partition('id="doc:/api/v1/decisions">')[2].partition("</script>")[0]
    text = " ".join(waiting.output.split())
    assert waiting.output.splitlines()[-1] == "  From the running scheduler, scheduling/me."
    assert "cannot meet NUMA policy SingleNUMANode" in text
    assert "- container main with 8 CPUs instead of 12 fits on n, NUMA 1" in text
    assert "tried 1 time" in text
    assert "is bound on n" in bound.output
    assert "NUMA 0, CPUs 0-1,8-9" in bound.output
    assert (document["source"], document["state"], document["asks"]) == (
        "scheduler scheduling/me",
        "waiting",
        "12 CPU 12Gi",
    )
    assert objects.output.splitlines()[-1].strip() == BY_OBJECTS


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda server: server.faults.add(Fault(verb="get", resource="leases", status=403)),
            id="no-right-to-the-lease",
        ),
        pytest.param(lambda server: server.store.delete("pods", "me", "scheduling"), id="leader-is-no-pod"),
        pytest.param(lambda server: server.local_ports.clear(), id="port-is-not-served"),
        pytest.param(
            lambda server: server.faults.add(Fault(verb="get", resource="pods", subresource="portforward", status=403)),
            id="no-right-to-forward",
        ),
    ],
)
async def test_without_an_answer_the_objects_are_asked(
    change: "object", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scheduling(tmp_path, monkeypatch) as (cluster, _):
        assert callable(change)
        change(cluster.server)
        answer = await explain(cluster, "wide")
    assert answer.exit_code == 0
    assert answer.output.splitlines()[-1].strip() == BY_OBJECTS


async def test_a_scheduler_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(tmp_path, monkeypatch) as (cluster, _):
        monkeypatch.setattr("koord_numa.cli.cluster.running.REACH_SECONDS", 0.2)
        slow = Fault(verb="get", resource="pods", subresource="portforward", effect=Effect.DELAY, seconds=None)
        cluster.server.faults.add(slow)
        answer = await explain(cluster, "wide")
        cluster.server.faults.clear()
    assert answer.output.splitlines()[-1].strip() == BY_OBJECTS


async def test_a_scheduler_that_was_named_has_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(tmp_path, monkeypatch) as (cluster, runtime):
        url = f"http://127.0.0.1:{runtime.http_server.port}"
        named = await explain(cluster, "wide", "--scheduler", url)
        unknown = await explain(cluster, "no-such-pod", "--scheduler", url)
        options = ["--scheduler", url, "--kubeconfig", str(cluster.kubeconfig)]
    away = await asyncio.to_thread(CliRunner().invoke, main, ["explain", "wide", *options])
    assert named.output.splitlines()[-1] == f"  From the running scheduler, {url}."
    assert unknown.output == "Error: pod default/no-such-pod neither waits for this scheduler nor holds resources\n"
    assert away.exit_code == 1
    assert len(away.output.splitlines()) == 1
    assert "is kubectl port-forward running?" in away.output


async def test_nodes_are_those_of_the_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(tmp_path, monkeypatch) as (cluster, _):
        options = ["--kubeconfig", str(cluster.kubeconfig)]
        leader = await asyncio.to_thread(CliRunner().invoke, main, ["nodes", "-o", "wide", *options])
        # The leader needs no rights to list objects, as the command does without it.
        cluster.server.faults.add(Fault(verb="list", resource="nodes", status=403))
        again = await asyncio.to_thread(CliRunner().invoke, main, ["nodes", "-o", "wide", *options])
        objects = await asyncio.to_thread(CliRunner().invoke, main, ["nodes", "--scheduler", "none", *options])
        cluster.server.faults.clear()
        without = await asyncio.to_thread(
            CliRunner().invoke, main, ["nodes", "-o", "wide", "--scheduler", "none", *options]
        )
    assert leader.output == again.output == without.output
    assert "4/8" in leader.output
    assert "Forbidden" in objects.output or "forbidden" in objects.output


HEAVY = ("aiohttp", "asyncio", "pydantic", "numpy", "rich", "koord_numa.core.objects.request", "koord_numa.engine")


ENTRY = {
    "name": "n",
    "labels": {},
    "cpusOf": "none",
    "policy": "",
    "scope": "",
    "numa": [],
    "largest": "",
    "status": "ok",
    "pods": 0,
    "held": "",
    "topologyVersion": "",
}


async def test_nodes_of_a_scheduler_of_another_version(tmp_path: Path) -> None:
    """The objects are used where the answer lacks a field that the table shows."""
    old = {name: value for name, value in ENTRY.items() if name != "largest"}
    async with ApiServer() as server:
        kubeconfig = str(server.write_kubeconfig(tmp_path / "kubeconfig"))
        outputs = []
        for entry in (ENTRY, old):
            async with FakeScheduler(json.dumps({"nodes": [entry]}).encode()) as port:
                words = ["nodes", "--kubeconfig", kubeconfig, "--scheduler", f"http://127.0.0.1:{port}"]
                outputs.append((await asyncio.to_thread(CliRunner().invoke, main, words)).output)
    assert outputs[0].splitlines()[1].split() == ["n", *["-"] * 6, "ok"]
    assert outputs[1] == "No resources found\n"


async def test_nodes_of_the_leader_import_little(tmp_path: Path) -> None:
    """Start-up time is import time: with these modules, the command needs 1.5 s of CPU instead of 0.3 s."""
    cluster = json.dumps({"nodes": [ENTRY]}).encode()
    async with ApiServer() as server, FakeScheduler(cluster) as port:
        for name in ("koord-numa", "scheduling"):
            server.store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "me"}}
        server.store.create({**lease, "metadata": {"name": "koord-numa", "namespace": "koord-numa"}})
        server.store.create(deployed("me"))
        server.local_ports["scheduling", "me", DEFAULT_PORT] = port
        code = (
            "import sys\nfrom koord_numa.cli import main\n"
            f"try:\n    main()\nfinally:\n    print('loaded', *[it for it in {HEAVY!r} if it in sys.modules])"
        )
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", code, "nodes", "--no-headers"],
            env={"KUBECONFIG": str(server.write_kubeconfig(tmp_path / "kubeconfig")), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
    assert [line.split() for line in done.stdout.splitlines()] == [["n", *["-"] * 6, "ok"], ["loaded"]]


def forward(kubeconfig: Path, namespace: str, pod: str, port: int, path: str) -> tuple[int, bytes]:
    """Request a path of a port of a pod."""
    with BlockingApi(load_credentials(kubeconfig)) as api, closing(PodConnection(api, namespace, pod, port)) as found:
        found.request("GET", path)
        response = found.getresponse()
        return response.status, response.read()


async def test_large_documents_arrive_whole(tmp_path: Path) -> None:
    """A frame has its length in two or in eight bytes, and a reader may get half of it."""
    async with ApiServer() as server, FakeScheduler(b"x" * 300_000) as port:
        server.store.create(in_default("me"))
        server.local_ports["default", "me", 80] = port
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        found = await asyncio.to_thread(forward, kubeconfig, "default", "me", 80, f"/?{'y' * 70_000}")
    assert found == (200, b"x" * 300_000)


async def test_port_forward_errors_are_those_of_the_api(tmp_path: Path) -> None:
    async with ApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        with pytest.raises(Gone):
            await asyncio.to_thread(forward, kubeconfig, "default", "missing", 80, "/")
        server.store.create(in_default("me"))
        with pytest.raises(ConnectionError, match="connection to port 80 inside the pod is refused"):
            await asyncio.to_thread(forward, kubeconfig, "default", "me", 80, "/")
        server.faults.add(Fault(verb="get", resource="pods", subresource="portforward", status=403))
        with pytest.raises(Forbidden, match="get pods/portforward"):
            await asyncio.to_thread(forward, kubeconfig, "default", "me", 80, "/")
