"""Pods and nodes that request quiet CPUs and empty siblings: the agent enforces it, restores it, or reports why not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.node.agent import INTERRUPT_INTERVAL, Agent
from koord_numa.node.applier import isolation_plan
from koord_numa.node.pods import DecidedPod
from koord_numa.node.sysfs import read_host
from koord_numa.sandbox.machines.node_services import write_sysfs
from koord_numa.wire import names
from tests.node.descriptions import PLAIN, SHAPE, STATIC, effective
from tests.node.nodes import NODE, World, world
from tests.node.test_interrupts import FakeProc
from tests.sandbox.machines.pods import bind, create


def isolated(around: World, name: str, cpus: str, words: str = "interrupts,siblings") -> str:
    """Place a pod that requests isolation, and return its UID."""
    pod = create(around.server.store, name, {"cpu": "2"}, annotations={names.CPU_ISOLATION: words} if words else {})
    bind(around.server.store, pod, NODE, {"cpuset": cpus} if cpus else {})
    return pod.uid


def label(around: World, words: str) -> None:
    around.server.store.patch("nodes", NODE, {"metadata": {"labels": {names.NODE_CPU_ISOLATION: words}}})


def settings(proc: FakeProc) -> dict[str, Any]:
    return {"proc": proc.folder / "proc", "run": proc.folder / "run", "state": proc.folder / "state"}


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    found = FakeProc(tmp_path / "host")
    found.set({24: "0-15", 25: "1-2", 26: "4"})
    return found


async def apply(agent: Agent) -> None:
    """A round of the agent, which has read its Node before the first one."""
    await agent._read_node()
    await agent.apply()


async def notes(around: World, agent: Agent) -> list[str]:
    await agent.observe()
    return [event["note"] for event in around.server.store.list("events.events.k8s.io")]


@pytest.mark.parametrize("by_label", [False, True], ids=["annotation", "label"])
async def test_quiet_cpus_and_empty_siblings(by_label: bool, tmp_path: Path, proc: FakeProc) -> None:
    async with world(tmp_path, PLAIN) as around:
        if by_label:
            label(around, "interrupts.siblings")
        isolated(around, "a", "1-2", "" if by_label else "interrupts,siblings")
        shared = create(around.server.store, "b", {"cpu": "500m"})
        bind(around.server.store, shared, NODE)
        async with around.agent(apply=True, **settings(proc)) as agent:
            await apply(agent)
            assert effective(around, shared.uid) == "0,3-8,11-15"
            quiet = {24: "0,3-8,11-15", 25: "0,3-8,11-15", 26: "4"}
            assert (proc.affinities(), proc.default) == (quiet, "f9f9")
            assert agent.metrics.kept_off._value.get() == 2
            assert await notes(around, agent) == []
            await around.publish(agent)
            await around.publish(agent)
            pools = (around.topology() or {})["metadata"]["annotations"][names.CPU_SHARED_POOLS]
            assert '"cpuset":"0,3,8,11"' in pools
            # Another program moves an interrupt back: corrected by a later round.
            (proc.irq / "24" / "smp_affinity_list").write_text("1-15")
            around.clock.now += INTERRUPT_INTERVAL
            await apply(agent)
            assert proc.affinities()[24] == "3-8,11-15"
            assert agent.metrics.returned._value.get() == 1
        # Killed. The pod goes meanwhile, and the next agent restores.
        around.server.store.delete("pods", "a", "default")
        async with around.agent(apply=True, **settings(proc)) as agent:
            await apply(agent)
            assert effective(around, shared.uid) == "0-15"
            assert (proc.affinities(), proc.default) == ({24: "1-15", 25: "1-2", 26: "4"}, "ffff")


@pytest.mark.parametrize("end", ["released", "no longer applying", "refused"])
async def test_interrupts_are_restored(end: str, tmp_path: Path, proc: FakeProc) -> None:
    original = proc.affinities()
    async with world(tmp_path, PLAIN) as around:
        isolated(around, "a", "1-2")
        async with around.agent(apply=True, **settings(proc)) as agent:
            await apply(agent)
            assert proc.affinities() != original
        async with around.agent(apply=end != "no longer applying", **settings(proc)) as agent:
            if end == "released":
                await agent.release()
            elif end == "refused":
                around.services.kubelet_config.write_text("cpuManagerPolicy: static\n")
                await apply(agent)
            else:
                await agent.observe()
            assert proc.affinities() == original


async def test_an_unknown_label_changes_nothing(
    tmp_path: Path, proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted agent that cannot read its Node does not restore what the label requests."""
    async with world(tmp_path, PLAIN) as around:
        label(around, "interrupts")
        isolated(around, "a", "1-2", "")
        async with around.agent(apply=True, **settings(proc)) as agent:
            await apply(agent)
        steered = proc.affinities()
        assert steered[25] == "0,3-15"
        async with around.agent(apply=True, **settings(proc)) as agent:
            # The API server does not answer, and a round does not ask it.
            monkeypatch.setattr(agent._api, "get", asyncio.Event().wait)
            await agent.apply()
            assert proc.affinities() == steered


@pytest.mark.parametrize(
    ("words", "cpus", "config", "note"),
    [
        pytest.param("interrupts", "1-2", {"apply": False}, "the node agent applies no cpusets", id="not applying"),
        pytest.param(
            "interrupts",
            "1-2",
            {"state": None},
            "interrupts are not moved: without --state-dir they cannot be restored after a crash",
            id="no state",
        ),
        pytest.param("interrupts", "", {}, "the pod has no exclusive CPUs", id="shared CPUs"),
        pytest.param(
            "siblings",
            "1,3",
            {},
            "sibling threads 9 of its CPUs are held by default/other",
            id="a sibling of another pod",
        ),
        pytest.param("isolcpus", "1-2", {}, "", id="for the scheduler only"),
    ],
)
async def test_refusals_are_reported(
    words: str, cpus: str, config: dict[str, Any], note: str, tmp_path: Path, proc: FakeProc
) -> None:
    async with (
        world(tmp_path, PLAIN) as around,
        around.agent(**{"apply": True, **settings(proc), **config}) as agent,
    ):
        isolated(around, "a", cpus, words)
        isolated(around, "other", "9,12", "")
        around.see_pods(agent)
        for _ in range(2):  # reported once
            if agent._config.apply:
                await apply(agent)
            await agent.observe()
        events = around.server.store.list("events.events.k8s.io")
        assert [event["note"] for event in events] == ([note] if note else [])
        assert all(event["reason"] == "CpuIsolationRefused" for event in events)
        assert agent.metrics.isolation_refused._value.get() == len(events)
        assert proc.affinities()[24] == "0-15"


async def test_a_static_kubelet_owns_the_cpus(tmp_path: Path, proc: FakeProc) -> None:
    async with world(tmp_path, STATIC) as around, around.agent(apply=True, **settings(proc)) as agent:
        isolated(around, "a", "1-2", "interrupts")
        around.see_pods(agent)
        await apply(agent)
        (note,) = await notes(around, agent)
        assert note.startswith("no cpuset is applied: the kubelet's CPU manager policy is static")
        assert proc.affinities()[24] == "0-15"


def test_words_of_other_schedulers_pods_are_checked(tmp_path: Path) -> None:
    """This scheduler rejects the annotation; the pod may have come through another one."""
    write_sysfs(tmp_path, SHAPE.build())
    pod = DecidedPod("default", "a", "u", CpuSet.parse("1-2"), isolation=frozenset({"interrupt", "siblings"}))
    plan = isolation_plan(read_host(tmp_path / "sys"), [pod])
    assert (str(plan.quiet), str(plan.empty)) == ("", "9-10")
    assert plan.refusals == {"u": "interrupt is none of interrupts, isolcpus, siblings"}
