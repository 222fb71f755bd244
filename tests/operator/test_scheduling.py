"""Pods through the whole operator: bound in one call, told why not, and never decided too early."""

import re
from pathlib import Path

import aiohttp
import orjson
import pytest

from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions, Effect, Fault
from koord_numa.settings import PodSource, ProfileSettings
from tests.cluster.objects import node, until
from tests.e2e.world import CRDS, World, kopf_watches, pinned, shared, world
from tests.operator.operating import (
    EITHER_WATCH,
    ONE_PAIR,
    SETTINGS,
    STATUS,
    TOPOLOGIES,
    events_about,
    get,
    operating,
    placed,
)


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
async def test_a_pod_that_fits_nowhere_is_bound_when_there_is_room(
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
        await until(lambda: not rack.unbound())
    assert rack.complaints() == []


@EITHER_WATCH
async def test_a_recreated_pod_gets_its_own_decision(
    rack: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource
) -> None:
    held = rack.server.faults.add(Fault(effect=Effect.DELAY, seconds=None, subresource="binding", count=1))
    rack.create([pinned("a", 2)])
    async with operating(rack.server, tmp_path, monkeypatch, pods=pods):
        await until(lambda: rack.server.faults.hits(held))
        rack.server.store.delete("pods", "a", "default", DeleteOptions(grace=0))
        rack.create([pinned("a", 4)])
        rack.server.faults.remove(held)
        await until(lambda: placed(rack.server, "a"))
    status = orjson.loads(get(rack.server, "a")["metadata"]["annotations"][STATUS])
    assert status["cpuset"].count("-") == 2
    assert rack.complaints() == []


async def test_without_topologies_installed_only_plain_pods_run(
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
            await until(lambda: placed(server, "late") == "plain")
            for name in (TOPOLOGIES, "rebindresources.scheduling.koordinator.sh"):
                server.store.delete("customresourcedefinitions.apiextensions.k8s.io", name)
            server.store.create(shared("after"))
            await until(lambda: placed(server, "after") == "plain")


@EITHER_WATCH
async def test_several_scheduler_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pods: PodSource) -> None:
    settings = SETTINGS.model_copy(
        update={"profiles": (ProfileSettings(scheduler_name="koord-numa"), ProfileSettings(scheduler_name="packing"))}
    )
    async with world(tmp_path, ONE_PAIR) as rack:
        rack.create([pinned("a", 2), pinned("b", 2, scheduler="packing"), pinned("c", 2, scheduler="other")])
        async with operating(rack.server, tmp_path, monkeypatch, settings, pods):
            await until(lambda: rack.unbound() == ["c"])
