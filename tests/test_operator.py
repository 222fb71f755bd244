"""The whole operator in this process, against an API server that can be made to fail."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from logging import getLogger
from pathlib import Path

import aiohttp
import kopf
import orjson
import pytest
from aiohttp.base_protocol import BaseProtocol

from koord_numa.app.runtime import Options, Runtime
from koord_numa.handlers.embedding import is_transient
from koord_numa.operator import options_from_environment, serve
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions, Effect, Fault
from koord_numa.settings import LeaseSettings, PodSource, ProfileSettings, Settings, SettingsError
from tests.cluster.objects import node, until
from tests.e2e.world import CRDS, JsonObject, World, kopf_watches, pinned, shared, world

STATUS = "scheduling.koordinator.sh/resource-status"
TOPOLOGIES = "noderesourcetopologies.topology.node.k8s.io"
SETTINGS = Settings(lease=LeaseSettings(duration=3, renew=2, retry=0.3))
ONE_PAIR: JsonObject = {
    "machines": [{"name": "n", "sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"}]
}


@contextmanager
def quiet_kopf() -> Iterator[None]:
    """Kopf configures levels of loggers for good."""
    level = getLogger("kopf.objects").level
    yield
    getLogger("kopf.objects").setLevel(level)


@asynccontextmanager
async def operating(
    server: ApiServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings = SETTINGS,
    pods: PodSource = PodSource.KOPF,
) -> AsyncIterator[Runtime]:
    """The operator as ``koord-numa run`` runs it."""
    made: list[Runtime] = []
    connect = Runtime.connect

    async def remembered(options: Options) -> Runtime:
        made.append(await connect(options))
        return made[0]

    monkeypatch.setattr(Runtime, "connect", remembered)
    kubeconfig = server.write_kubeconfig(folder / "kubeconfig")
    with quiet_kopf():
        task = asyncio.create_task(
            serve(Options(settings.model_copy(update={"pod_source": pods}), kubeconfig, "me", port=0))
        )
        await until(lambda: made or task.done())
        try:
            yield made[0]
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


EITHER_WATCH = pytest.mark.parametrize("pods", PodSource, ids=lambda pods: f"pods watched by {pods.value}")


@pytest.fixture
async def rack(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, ONE_PAIR) as made:
        yield made


def get(server: ApiServer, name: str) -> JsonObject:
    return server.store.get("pods", name, "default")


def placed(server: ApiServer, name: str) -> str:
    return str(get(server, name)["spec"].get("nodeName", ""))


def events_about(server: ApiServer, name: str) -> list[tuple[str, str]]:
    found = server.store.list("events.events.k8s.io")
    return [(event["reason"], event["note"]) for event in found if event["regarding"]["name"] == name]


@EITHER_WATCH
async def test_a_pod_is_bound_with_its_cpus_in_one_call(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    rack.create([pinned("a", 4, policy="SingleNUMANode")])
    async with operating(rack.server, tmp_path, monkeypatch, pods=pods):
        await until(lambda: get(rack.server, "a")["status"]["phase"] == "Running")
        await until(lambda: events_about(rack.server, "a"))
    bound = get(rack.server, "a")
    status = orjson.loads(bound["metadata"]["annotations"][STATUS])
    assert (bound["spec"]["nodeName"], status["cpuset"], [part["node"] for part in status["numaNodeResources"]]) == (
        "n",
        "0-1,8-9",
        [0],
    )
    assert rack.complaints() == []
    assert events_about(rack.server, "a") == [
        ("Scheduled", "Successfully assigned default/a to n: NUMA 0, CPUs 0-1,8-9")
    ]
    writes = {rule for rule in rack.server.requests.rules("koord-numa") if rule[0] in ("create", "patch", "update")}
    assert writes == {
        ("create", "", "pods/binding"),
        ("create", "coordination.k8s.io", "leases"),
        ("update", "coordination.k8s.io", "leases"),
        ("create", "events.k8s.io", "events"),
    }


@EITHER_WATCH
async def test_a_pod_that_fits_nowhere_is_told_why_and_bound_when_there_is_room(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    rack.create([shared("big", "20")])
    async with operating(rack.server, tmp_path, monkeypatch, pods=pods):
        await until(lambda: get(rack.server, "big")["status"].get("conditions"))
        (condition,) = get(rack.server, "big")["status"]["conditions"]
        assert {key: condition[key] for key in ("type", "status", "reason")} == {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
        }
        assert re.match(r"0/1 nodes are available: 1 .*cpu", condition["message"])
        await until(lambda: ("FailedScheduling", condition["message"]) in events_about(rack.server, "big"))
        rack.server.store.create(node("roomy", cpu="32"))
        await until(lambda: placed(rack.server, "big") == "roomy")


@EITHER_WATCH
async def test_nothing_is_decided_before_everything_is_known(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    fault = rack.server.faults.add(Fault(status=403, verb="list", resource="noderesourcetopologies"))
    rack.create([pinned("a", 2), shared("b")])
    async with operating(rack.server, tmp_path, monkeypatch, pods=pods) as runtime:
        resync = next(each for each in runtime.informers.resyncs if each.name == "NodeResourceTopologies")
        await until(lambda: resync.problem)
        assert "list noderesourcetopologies.topology.node.k8s.io" in resync.problem
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{runtime.http_server.port}/readyz") as response:
                assert response.status == 503
                assert "NodeResourceTopologies" in await response.text()
            async with session.get(f"http://127.0.0.1:{runtime.http_server.port}/healthz") as response:
                assert response.status == 200
        assert rack.unbound() == ["a", "b"]
        rack.server.faults.remove(fault)
        await until(lambda: not rack.unbound(), 30)
    assert rack.complaints() == []


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(status=409, subresource="binding", count=3), id="conflict"),
        pytest.param(Fault(status=429, subresource="binding", count=3), id="too many requests"),
        pytest.param(Fault(status=500, subresource="binding", count=3), id="internal error"),
        pytest.param(Fault(status=503, subresource="binding", count=3), id="unavailable"),
        pytest.param(Fault(status=504, subresource="binding", count=3), id="gateway timeout"),
        pytest.param(Fault(effect=Effect.DROP, subresource="binding", count=3), id="connection lost before"),
        pytest.param(Fault(effect=Effect.LOSE_ANSWER, subresource="binding", count=3), id="answer lost"),
    ],
)
async def test_binds_that_fail_are_settled(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    rack.server.faults.add(fault)
    rack.create([pinned(f"p{number}", 2) for number in range(6)])
    async with operating(rack.server, tmp_path, monkeypatch):
        await until(lambda: not rack.unbound(), 30)
        await until(lambda: len(rack.server.store.list("pods", fields="status.phase=Running")) == 6)
    assert rack.complaints() == []


@EITHER_WATCH
async def test_a_pod_created_again_under_its_name_is_bound_by_a_decision_of_its_own(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    rack.server.faults.add(Fault(effect=Effect.DELAY, seconds=0.3, subresource="binding", count=1))
    rack.create([pinned("a", 2)])
    async with operating(rack.server, tmp_path, monkeypatch, pods=pods):
        await until(lambda: any(asked.subresource == "binding" for asked in rack.server.requests))
        rack.server.store.delete("pods", "a", "default", DeleteOptions(grace=0))
        rack.create([pinned("a", 4)])
        await until(lambda: placed(rack.server, "a"))
    status = orjson.loads(get(rack.server, "a")["metadata"]["annotations"][STATUS])
    assert status["cpuset"].count("-") == 2
    assert rack.complaints() == []


async def test_without_topologies_installed_plain_pods_run_and_others_follow_when_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ApiServer(bookmark_interval=0.5) as server:
        server.store.create(node("plain"))
        server.store.create(shared("early"))
        async with operating(server, tmp_path, monkeypatch):
            await until(lambda: placed(server, "early") == "plain")
            await until(lambda: "customresourcedefinitions" in kopf_watches(server))
            for crd in CRDS:
                server.apply_file(crd)
            await until(lambda: "noderesourcetopologies" in kopf_watches(server))
            server.store.create(pinned("late", 2, policy="SingleNUMANode"))
            async with world(tmp_path, ONE_PAIR) as template:
                topology = template.server.store.get(TOPOLOGIES, "n")
            topology["metadata"] = {
                "name": "plain",
                "annotations": topology["metadata"]["annotations"],
                "labels": topology["metadata"]["labels"],
            }
            server.store.create(topology)
            await until(lambda: placed(server, "late") == "plain", 20)
            for name in (TOPOLOGIES, "rebindresources.scheduling.koordinator.sh"):
                server.store.delete("customresourcedefinitions.apiextensions.k8s.io", name)
            server.store.create(shared("after"))
            await until(lambda: placed(server, "after") == "plain", 20)


@EITHER_WATCH
async def test_an_outage_is_survived(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    async with operating(rack.server, tmp_path, monkeypatch, pods=pods) as runtime:
        await until(
            lambda: runtime.scheduler.ready and (pods is PodSource.INFORMER or "pods" in kopf_watches(rack.server))
        )
        await rack.server.stop()
        await until(lambda: not runtime.lease.fresh())
        rack.create([pinned("a", 2)])
        await rack.server.start()
        await until(lambda: placed(rack.server, "a"), 30)
    assert rack.complaints() == []


@EITHER_WATCH
async def test_what_vanished_between_watches_is_noticed(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    rack.create([shared("ghost", "20"), shared("stays", "21")])
    async with operating(rack.server, tmp_path, monkeypatch, pods=pods) as runtime:
        await until(
            lambda: (
                len(runtime.scheduler.waiting()) == 2
                and (pods is PodSource.INFORMER or "pods" in kopf_watches(rack.server))
            )
        )
        outage = rack.server.faults.add(Fault(effect=Effect.OUTAGE))
        await until(lambda: rack.server.open_watches == 0)
        rack.server.store.delete("pods", "ghost", "default", DeleteOptions(grace=0))
        rack.server.compact()
        rack.server.faults.remove(outage)
        await until(lambda: [pod.key.name for pod in runtime.scheduler.waiting()] == ["stays"], 30)


@EITHER_WATCH
async def test_kopf_giving_up_does_not_end_the_process(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    async with operating(rack.server, tmp_path, monkeypatch, pods=pods) as runtime:
        await until(lambda: TOPOLOGIES.partition(".")[0] in kopf_watches(rack.server))
        rack.server.faults.add(Fault(status=401, verb="watch", user_agent="kopf", count=2))
        rack.server.faults.add(Fault(effect=Effect.CUT_WATCH, user_agent="kopf", count=4))
        rack.create([pinned("a", 2), pinned("b", 2)])
        await until(lambda: not rack.unbound(), 30)
        assert runtime.lease.fresh()
    assert rack.complaints() == []


@EITHER_WATCH
async def test_several_scheduler_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource) -> None:
    settings = SETTINGS.model_copy(
        update={"profiles": (ProfileSettings(scheduler_name="koord-numa"), ProfileSettings(scheduler_name="packing"))}
    )
    async with world(tmp_path, ONE_PAIR) as rack:
        rack.create([pinned("a", 2), pinned("b", 2, scheduler="packing"), pinned("c", 2, scheduler="other")])
        async with operating(rack.server, tmp_path, monkeypatch, settings, pods):
            await until(lambda: rack.unbound() == ["c"], 30)


async def test_a_task_that_dies_ends_the_process(rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("koord_numa.engine.scheduler.Scheduler.run", dies)
    kubeconfig = rack.server.write_kubeconfig(tmp_path / "kubeconfig")
    with quiet_kopf(), pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(serve(Options(SETTINGS, kubeconfig, "me", port=0)), 30)
    lease = rack.server.store.find("leases.coordination.k8s.io", "koord-numa", "koord-numa")
    assert lease is None or lease["spec"]["holderIdentity"] == ""


def test_kopf_run_is_configured_by_the_environment(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("bindConcurrency: 7")
    options = options_from_environment(
        {
            "KOORD_NUMA_CONFIG": str(config),
            "KOORD_NUMA_METRICS_PORT": "",
            "KOORD_NUMA_IDENTITY": "me",
            "KOORD_NUMA_LEADER_ELECT": "false",
        }
    )
    assert options == Options(Settings(bind_concurrency=7), None, "me", elect=False, port=None)
    assert options_from_environment({}) == Options()


def test_a_bad_configuration_is_an_error() -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        options_from_environment({"KOORD_NUMA_CONFIG": "/does/not/exist"})


def test_an_informer_of_pods_under_kopf_run_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("podSource: Informer")
    with pytest.raises(SettingsError, match="needs koord-numa run"):
        options_from_environment({"KOORD_NUMA_CONFIG": str(config)})


@pytest.mark.parametrize(
    ("error", "heals"),
    [
        (kopf.LoginError("out of credentials"), True),
        (aiohttp.ClientConnectionError(), True),
        (OSError(), True),
        (TypeError("a bug"), False),
        (KeyError("a bug"), False),
        (RuntimeError("a bug"), False),
    ],
)
def test_which_ends_of_kopf_may_heal(error: Exception, heals: bool) -> None:
    assert is_transient(error) is heals


async def test_a_connection_that_kopf_closed_while_reading_may_heal() -> None:
    loop = asyncio.get_running_loop()
    closed = aiohttp.StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    with pytest.raises(RuntimeError) as caught:
        await closed.readany()
    assert is_transient(caught.value)
