"""The whole operator while calls fail, watches end, the server is away, and parts of it give up."""

import asyncio
from pathlib import Path
from typing import Any

import kopf
import pytest

from koord_numa.app.runtime import Options, Runtime
from koord_numa.handlers import embedding
from koord_numa.operator import serve
from koord_numa.ports import Unavailable
from koord_numa.sandbox.apiserver import DeleteOptions, Effect, Fault
from koord_numa.settings import LeaseSettings, PodSource, Settings
from tests.cluster.objects import PATIENCE, until
from tests.e2e.world import World, kopf_watches, pinned, shared
from tests.operator.operating import EITHER_WATCH, SETTINGS, TOPOLOGIES, operating, placed, quiet_kopf


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
        await until(lambda: not rack.unbound())
        await until(lambda: len(rack.server.store.list("pods", fields="status.phase=Running")) == 6)
    assert rack.complaints() == []


@EITHER_WATCH
async def test_an_outage_is_survived(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    brief = Settings(lease=LeaseSettings(duration=3, renew=2, retry=0.3))
    async with operating(rack.server, tmp_path, monkeypatch, brief, pods) as runtime:
        await until(
            lambda: runtime.scheduler.ready and (pods is PodSource.INFORMER or "pods" in kopf_watches(rack.server))
        )
        await rack.server.suspend()
        await until(lambda: not runtime.lease.fresh())
        rack.create([pinned("a", 2)])
        await rack.server.start()
        await until(lambda: placed(rack.server, "a"))
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
        await until(lambda: [pod.key.name for pod in runtime.scheduler.waiting()] == ["stays"])


@EITHER_WATCH
async def test_a_storm_of_410_and_429_loses_and_repeats_nothing(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    """Watches of every kind expire while pods come and go, and lists are turned away."""
    faults = rack.server.faults
    async with operating(rack.server, tmp_path, monkeypatch, pods=pods) as runtime:
        await until(lambda: rack.server.open_watches > 0)
        storm = [
            Fault(effect=Effect.EXPIRE_WATCH, resource="pods,nodes,noderesourcetopologies", probability=0.3, seed=1),
            Fault(status=429, verb="list,watch", probability=0.3, seed=2),
        ]
        added = [faults.add(fault) for fault in storm]
        for number in range(4):
            rack.create([shared(f"p{number}", "1"), shared(f"gone{number}", "20")])
            await asyncio.sleep(0.05)
            rack.server.store.delete("pods", f"gone{number}", "default", DeleteOptions(grace=0))
            rack.server.compact()
        for fault in added:
            faults.remove(fault)
        await until(lambda: not rack.unbound() and not runtime.scheduler.waiting())
        await until(lambda: len(rack.server.store.list("pods", fields="status.phase=Running")) == 4)
    assert rack.complaints() == []


@EITHER_WATCH
async def test_kopf_giving_up_does_not_end_the_process(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    async with operating(rack.server, tmp_path, monkeypatch, pods=pods) as runtime:
        await until(lambda: TOPOLOGIES.partition(".")[0] in kopf_watches(rack.server))
        rack.server.faults.add(Fault(status=401, verb="watch", user_agent="kopf", count=2))
        rack.server.faults.add(Fault(effect=Effect.CUT_WATCH, user_agent="kopf", count=4))
        rack.create([pinned("a", 2), pinned("b", 2)])
        await until(lambda: not rack.unbound())
        await until(runtime.lease.fresh)
    assert rack.complaints() == []


async def test_kopf_waits_for_temporarily_missing_credentials(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_session = Runtime.new_session
    refusals = [Unavailable("no credentials at the moment: a token file that is empty")]

    async def late(runtime: Runtime) -> Any:
        if refusals:
            raise refusals.pop()
        return await new_session(runtime)

    monkeypatch.setattr(Runtime, "new_session", late)
    monkeypatch.setattr(embedding, "LOGIN_PAUSE", 0.01)
    spawn, runs = kopf.spawn_tasks, list[object]()

    async def counted(**options: Any) -> Any:
        runs.append(options)
        return await spawn(**options)

    monkeypatch.setattr(kopf, "spawn_tasks", counted)
    async with operating(rack.server, tmp_path, monkeypatch):
        await until(lambda: "pods" in kopf_watches(rack.server))
    assert not refusals
    assert len(runs) == 1


async def test_a_task_that_dies_ends_the_process(rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("koord_numa.engine.scheduler.Scheduler.run", dies)
    kubeconfig = rack.server.write_kubeconfig(tmp_path / "kubeconfig")
    with quiet_kopf(), pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(serve(Options(SETTINGS, kubeconfig, "me", port=0)), PATIENCE)
    lease = rack.server.store.find("leases.coordination.k8s.io", "koord-numa", "koord-numa")
    assert lease is None or lease["spec"]["holderIdentity"] == ""
