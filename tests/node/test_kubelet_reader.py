"""The agent on a simulated kubelet that passes through the intermediate states of a real one."""

import asyncio
import logging
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletCheckpoint
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.resources import CPU
from koord_numa.core.value_objects import replace
from koord_numa.node.agent import Agent
from koord_numa.node.kubelet_reader import PATIENCE
from koord_numa.sandbox.machines.agents import KubeletAgent
from koord_numa.sandbox.machines.node_services import ADMISSION_WINDOW, WRITE_DELAY
from koord_numa.wire import parse_topology
from tests.node.descriptions import GUARANTEED, STATIC
from tests.node.nodes import NODE, World, world
from tests.sandbox.machines.pods import bind, create

GPU: Final = {"cpu": "4", "memory": "2Gi", "nvidia.com/gpu": "1"}


def published(around: World) -> KubeletCheckpoint:
    """The checkpoint in the published object, which must be readable."""
    topology = parse_topology(around.topology() or {})
    assert not topology.problem
    assert topology.checkpoint is not None
    return topology.checkpoint


def expected(around: World) -> KubeletCheckpoint:
    """The simulated kubelet's own state."""
    assert isinstance(around.node._agent, KubeletAgent)
    return around.node._agent.checkpoint(0.0)


def same(found: KubeletCheckpoint, wanted: KubeletCheckpoint) -> bool:
    """Equal but for the time and for departed pods, which each side remembers for another while."""
    return replace(found, read_at=0.0, gone=frozenset()) == replace(wanted, read_at=0.0, gone=frozenset())


def start(around: World, name: str, limits: dict[str, str]) -> str:
    """A pod that the kubelet admits now; returns its uid."""
    pod = create(around.server.store, name, limits)
    bind(around.server.store, pod, NODE)
    return pod.uid


async def test_the_exact_state_is_published(tmp_path: Path) -> None:
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        await around.publish(agent)
        assert same(published(around), expected(around))
        uids = [
            start(around, f"p{number}", limits) for number, limits in enumerate((GUARANTEED, GPU, {"cpu": "1500m"}))
        ]
        await around.publish(agent)
        found = published(around)
        assert same(found, expected(around))
        assert found.is_exact
        assert found.active == set(uids)
        assert found.reserved_cpus == 1
        assert found.pods[uids[1]]["c"].devices["nvidia.com/gpu"]
        assert uids[2] not in found.pods


async def test_a_pod_is_never_published_without_its_cpus(tmp_path: Path) -> None:
    """Right after its admission podresources lists the pod without CPUs: the reading is repeated, in the same round."""
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        await around.publish(agent)
        start(around, "a", GUARANTEED)
        await around.publish(agent)
        assert agent.metrics.rereads._value.get() > 0
        topology = parse_topology(around.topology() or {})
        assert [zone.available[CPU] for zone in topology.zones] == [4000, 8000]
        assert same(published(around), expected(around))


async def test_a_pod_that_never_gets_its_cpus_stops_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("koord_numa.sandbox.machines.node_services.ADMISSION_WINDOW", 1e9)
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        await around.publish(agent)
        start(around, "a", GUARANTEED)
        around.clock.now += 10 * PATIENCE
        assert await around.publish(agent) == 1
        around.clock.now += 10 * PATIENCE
        assert await around.publish(agent) == 1
        assert "lists container c of pod default/a without CPUs" in caplog.text


async def test_a_restart_of_the_kubelet_frees_nothing(tmp_path: Path) -> None:
    """It lists nothing at first. When it lists its pods again the same state is published once more, as one of now."""
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        start(around, "a", GUARANTEED)
        start(around, "b", {"cpu": "1500m"})
        await around.publish(agent)
        before = published(around)
        await around.services.restart_kubelet()
        for _ in range(5):
            await around.publish(agent)
            assert same(published(around), before)
        assert published(around).read_at > before.read_at
        assert agent.publisher.writes == 2


async def test_an_ended_pod_is_gone_at_once(tmp_path: Path) -> None:
    """Its entries stay in the files; what it held is free all the same, and nothing is sent when the files follow."""
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        uid = start(around, "a", GPU)
        kept = start(around, "b", GUARANTEED)
        await around.publish(agent)
        pod = around.node.pods[uid].key
        around.node.finish(pod)
        await asyncio.sleep(3 * WRITE_DELAY)
        stale = orjson.loads((around.services.root_dir / "cpu_manager_state").read_bytes())["entries"]
        assert uid in stale
        assert await around.publish(agent) == 2
        found = published(around)
        assert found.gone == {uid}
        assert found.active == set(found.pods) == {kept}
        assert same(found, expected(around))
        around.server.store.delete("pods", "a", "default")
        assert await around.publish(agent) == 2


async def test_refused_pods_are_gone(tmp_path: Path) -> None:
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        uid = start(around, "a", {"cpu": "9", "memory": "1Gi"})
        await around.publish(agent)
        assert around.node.refusals
        assert published(around).gone == {uid}
        assert not published(around).active


async def test_nothing_changes_while_nothing_changes(tmp_path: Path) -> None:
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        start(around, "a", GPU)
        for _ in range(5):
            await around.publish(agent)
            await asyncio.sleep(WRITE_DELAY)
        assert agent.publisher.writes == 1


UNREADABLE: Final = {
    "no directory": ("--root-dir", lambda root: root.rename(root.with_name("elsewhere"))),
    "half a file": ("unknown format", lambda root: (root / "cpu_manager_state").write_text("{")),
}


@pytest.mark.parametrize(("text", "damage"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_without_readable_files_amounts_are_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, damage: Any
) -> None:
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        start(around, "a", GUARANTEED)
        await asyncio.sleep(3 * WRITE_DELAY)
        damage(around.services.root_dir)
        for _ in range(3):
            await around.publish(agent)
        assert agent.publisher.writes == 1
        topology = parse_topology(around.topology() or {})
        assert topology.zones[0].available[CPU] == 4000
        found = published(around)
        assert not found.is_exact
        assert (found.pods, found.active) == ({}, frozenset())
        assert (found.cpus, found.cpu_options) == (expected(around).cpus, {"full-pcpus-only": False})
        assert text in caplog.text
        assert len([record for record in caplog.records if "exact state" in record.message]) == 1
        assert agent.metrics.errors.labels("kubelet-files")._value.get() >= 3
        assert agent.metrics.state_known._value.get() == 0


async def test_a_contradiction_that_stays_costs_the_exact_state_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the kubelet's files belong to another kubelet."""
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        start(around, "a", GUARANTEED)
        await asyncio.sleep(3 * WRITE_DELAY)
        file = around.services.root_dir / "cpu_manager_state"
        text = file.read_text()
        file.write_text('{"policyName":"static","defaultCpuSet":"0-15"}')
        assert await around.publish(agent) == 0
        around.clock.now += PATIENCE
        assert await around.publish(agent) == 1
        assert not published(around).is_exact
        assert parse_topology(around.topology() or {}).zones[0].available[CPU] == 4000
        assert "other CPUs in podresources" in caplog.text
        file.write_text(text)
        assert await around.publish(agent) == 2
        assert same(published(around), expected(around))


async def test_a_pod_that_the_kubelet_insists_not_to_run_is_gone(tmp_path: Path) -> None:
    """The API server may show a pod as running for long after its end. Later changes are then not delayed again."""
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        stuck = start(around, "a", GUARANTEED)
        await around.publish(agent)
        around.node._agent.remove(stuck)
        around.node._pods.pop(stuck)
        assert await around.publish(agent) == 1
        around.clock.now += PATIENCE
        assert await around.publish(agent) == 2
        assert not published(around).active
        assert published(around).gone == {stuck}
        later = start(around, "b", GUARANTEED)
        assert await around.publish(agent) == 3
        assert published(around).active == {later}


FLAGGED: Final = replace(STATIC, kubelet=replace(STATIC.kubelet, reserved_cpus=CpuSet()), reserved=CpuSet())


async def test_a_policy_that_is_set_by_a_flag(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The configuration file says nothing of it. What podresources and files show is published, and told once."""
    caplog.set_level(logging.WARNING)
    async with world(tmp_path, FLAGGED) as around:
        around.services.kubelet_config.write_text("kind: KubeletConfiguration\ncgroupDriver: systemd\n")
        async with around.agent(root_dir=None) as agent:
            await around.publish(agent)
            assert parse_topology(around.topology() or {}).owner is CpuOwner.SCHEDULER
            start(around, "a", GUARANTEED)
            await asyncio.sleep(2 * ADMISSION_WINDOW)
            for _ in range(3):
                await around.publish(agent)
            topology = parse_topology(around.topology() or {})
            assert topology.owner is CpuOwner.KUBELET
            assert [zone.available[CPU] for zone in topology.zones] == [5000, 8000]
            attributes = {each["name"]: each["value"] for each in (around.topology() or {})["attributes"]}
            assert attributes["cpuManagerPolicy"] == "static"
            assert "topologyManagerPolicy" not in attributes
            # Its options are not known, and must not count as off.
            assert topology.kubelet.cpu_policy is None
            assert caplog.text.count("but it is static: container c of pod default/a has exclusive CPUs") == 1


async def test_nothing_is_applied_where_files_show_a_static_policy(tmp_path: Path) -> None:
    async with world(tmp_path, FLAGGED) as around:
        around.services.kubelet_config.write_text("kind: KubeletConfiguration\n")
        async with around.agent(apply=True) as agent:
            await asyncio.sleep(3 * WRITE_DELAY)
            await agent.apply()
            assert agent.metrics.errors.labels("apply")._value.get() == 1


async def test_changes_wake_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without waiting for its next timed look, which is an hour away here."""
    monkeypatch.setattr("koord_numa.node.agent.PUBLISH_INTERVAL", 3600.0)
    monkeypatch.setattr("koord_numa.node.publisher.MIN_INTERVAL", 0.0)
    async with world(tmp_path, STATIC) as around:
        stop = asyncio.Event()
        async with around.agent() as idle:
            config = idle._config
        agent = Agent(config, around.api)
        running = asyncio.create_task(agent.run(stop))
        async with asyncio.timeout(60):
            while around.topology() is None:  # noqa: ASYNC110  (another program writes it)
                await asyncio.sleep(0.01)
            for number in range(3):
                start(around, f"p{number}", GUARANTEED)
                while not same(published(around), expected(around)):  # noqa: ASYNC110  (another program writes it)
                    await asyncio.sleep(0.01)
        stop.set()
        await running


async def test_a_change_of_a_file_alone_wakes_the_agent(tmp_path: Path) -> None:
    async with world(tmp_path, STATIC) as around, around.agent() as agent:
        agent.pods.noticed.clear()
        new = around.services.root_dir / "new"
        new.write_text("{}")
        new.replace(around.services.root_dir / "memory_manager_state")
        async with asyncio.timeout(30):
            await agent.pods.noticed.wait()
