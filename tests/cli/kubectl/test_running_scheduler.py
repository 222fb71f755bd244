"""``explain`` asks the scheduler that leads, through the API server, for its own record; else the objects answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from koord_numa.app.runtime import Runtime
from koord_numa.cli import main
from koord_numa.cluster.client import Api
from koord_numa.cluster.port_forward import forwarded
from koord_numa.cluster.serving.http_server import DEFAULT_PORT
from koord_numa.ports import Forbidden, Gone
from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault
from tests.cluster.objects import PATIENCE, until
from tests.e2e.world import JsonObject, World, pinned, world
from tests.operator.operating import ONE_PAIR, operating

BY_OBJECTS = "By the API objects, not by the record of a running scheduler."


def deployed(name: str) -> JsonObject:
    """A pod of the scheduler's deployment."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "scheduling"},
        "spec": {"nodeName": "n", "containers": [{"name": "scheduler", "image": "i"}]},
    }


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
            await until(lambda: runtime.scheduler.queue_numbers().unschedulable == 1)
            await until(lambda: not runtime.scheduler.cache.assumed)
            cluster.create([deployed("me")])
            port = runtime.http_server.port
            assert port is not None
            cluster.server.local_ports["scheduling", "me", DEFAULT_PORT] = port
            yield cluster, runtime


async def explain(cluster: World, *arguments: str) -> Result:
    command = ["explain", *arguments, "--kubeconfig", str(cluster.kubeconfig)]
    return await asyncio.to_thread(CliRunner().invoke, main, command)


async def test_the_leader_answers_by_its_own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scheduling(tmp_path, monkeypatch) as (cluster, _):
        waiting, bound = await explain(cluster, "wide"), await explain(cluster, "runs")
        document = json.loads((await explain(cluster, "wide", "-o", "json")).output)
        objects = await explain(cluster, "wide", "--scheduler", "none")
    text = " ".join(waiting.output.split())
    assert waiting.output.splitlines()[-1] == "  By the record of the running scheduler, scheduling/me."
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
    assert named.output.splitlines()[-1] == f"  By the record of the running scheduler, {url}."
    assert unknown.output == "Error: pod default/no-such-pod neither waits for this scheduler nor holds anything\n"
    assert away.exit_code == 1
    assert len(away.output.splitlines()) == 1
    assert "is kubectl port-forward running?" in away.output


async def test_port_forward_errors_are_those_of_the_api(tmp_path: Path) -> None:
    async with ApiServer() as server, await Api.connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api:
        with pytest.raises(Gone):
            async with forwarded(api, "default", "missing", 80):
                pass
        server.faults.add(Fault(verb="get", resource="pods", subresource="portforward", status=403))
        with pytest.raises(Forbidden, match="get pods/portforward"):
            async with forwarded(api, "default", "missing", 80):
                pass
