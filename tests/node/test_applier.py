"""CPUs that the agent applies on scheduler-owned nodes, and nodes on which it applies none."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.node.agent import Agent
from koord_numa.node.applier import wanted
from koord_numa.node.pods import DecidedContainer, DecidedPod
from koord_numa.node.publisher import AgentConfig
from koord_numa.sandbox.machines.simulated_node import container_id
from koord_numa.wire import names
from tests.node.descriptions import PLAIN, STATIC, effective
from tests.node.nodes import NODE, world
from tests.sandbox.machines.pods import bind, create, place


@pytest.mark.parametrize("direct", [False, True], ids=["through-the-runtime", "direct-writes"])
async def test_decided_cpus_are_applied(tmp_path: Path, direct: bool) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent(apply=True, direct_writes=direct) as agent:
        pinned = place(around.server.store, NODE, "a", "1-2")
        shared = create(around.server.store, "b", {"cpu": "500m"})
        bind(around.server.store, shared, NODE)
        around.see_pods(agent)
        await agent.apply()
        written = [effective(around, uid) for uid in (pinned.uid, shared.uid)]
        if direct:  # the kernel derives the effective set; a plain file does not
            folder = around.services.cgroups._folders[container_id(pinned.uid, "c")]
            assert (folder / "cpuset.cpus").read_text() == "1-2"
        else:
            assert written == ["1-2", "0,3-15"]
            updates = len(around.services.updates)
            await agent.apply()
            assert len(around.services.updates) == updates  # nothing is left to do


async def test_drift_restarts_and_departures(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent(apply=True) as agent:
        store = around.server.store
        pinned = place(store, NODE, "a", "1-2")
        shared = create(store, "b", {"cpu": "500m"})
        bind(store, shared, NODE)
        around.see_pods(agent)
        await agent.apply()
        # systemd's daemon-reload sets every cgroup back to what systemd knows.
        around.services.cgroups.set(container_id(pinned.uid, "c"), CpuSet.parse("0-15"))
        await agent.apply()
        assert effective(around, pinned.uid) == "1-2"
        around.services.restart_container(pinned.uid, "c")
        assert effective(around, pinned.uid) == "0-15"
        await agent.apply()
        assert effective(around, pinned.uid) == "1-2"
        # A rebind: other CPUs in the annotation.
        status = {"metadata": {"annotations": {names.RESOURCE_STATUS: '{"cpuset":"4-5"}'}}}
        store.patch("pods", "a", status, "default")
        around.see_pods(agent)
        await agent.apply()
        assert (effective(around, pinned.uid), effective(around, shared.uid)) == ("4-5", "0-3,6-15")
        store.delete("pods", "a", "default")
        around.see_pods(agent)
        await agent.apply()
        assert effective(around, shared.uid) == "0-15"


async def test_a_new_agent_needs_no_memory_of_the_old_one(tmp_path: Path) -> None:
    """The first agent dies after each number of updates; the next one completes the round."""
    for survived in range(5):
        async with world(tmp_path / str(survived), PLAIN) as around:
            pods = [place(around.server.store, NODE, f"p{core}", f"{core},{core + 8}") for core in range(4)]
            async with around.agent(apply=True) as first:
                update, left = first._cri.update, survived  # type: ignore[union-attr]  # connected

                async def dying(container: str, cpus: CpuSet, mems: str = "") -> None:
                    nonlocal left
                    if left == 0:
                        raise asyncio.CancelledError
                    left -= 1
                    await update(container, cpus, mems)  # noqa: B023  (called in this turn of the loop only)

                first._runtime.update = dying  # type: ignore[union-attr, method-assign]  # dies in the middle
                with pytest.raises(asyncio.CancelledError) if survived < 4 else nullcontext():
                    await first.apply()
            assert len(around.services.updates) == survived
            assert len(around.services.cgroups.containers) == 4
            async with around.agent(apply=True) as second:
                await second.apply()
            assert [effective(around, pod.uid) for pod in pods] == [f"{core},{core + 8}" for core in range(4)]


async def test_everything_is_handed_back(tmp_path: Path) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent(apply=True) as agent:
        pinned = place(around.server.store, NODE, "a", "1-2")
        around.see_pods(agent)
        await agent.apply()
        assert await agent.release() == 1
        assert effective(around, pinned.uid) == "0-15"


async def test_cpus_that_a_kubelet_owns_are_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, STATIC) as around:
        config = AgentConfig(
            node=NODE,
            sysfs=around.services.sysfs,
            kubelet_config=around.services.kubelet_config,
            cri_socket=around.services.cri,
            apply=True,
        )
        stop = asyncio.Event()
        agent = Agent(config, around.api)
        refused, apply = asyncio.Event(), agent.apply

        async def noted() -> None:
            await apply()
            refused.set()

        monkeypatch.setattr(agent, "apply", noted)
        running = asyncio.create_task(agent.run(stop))
        await refused.wait()
        assert "CPU manager policy is static" in agent._why_not
        assert not running.done(), "the agent goes on publishing and observing"
        stop.set()
        await running
        assert not around.services.updates


KOORDLET_OWNER = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "koordlet", "uid": "k", "controller": True}


@pytest.mark.parametrize(
    ("metadata", "applies"),
    [
        pytest.param(
            {"namespace": "koordinator-system", "ownerReferences": [KOORDLET_OWNER]}, False, id="its DaemonSet"
        ),
        pytest.param({"ownerReferences": [KOORDLET_OWNER]}, True, id="another namespace"),
        pytest.param({"namespace": "koordinator-system"}, True, id="no owner"),
        pytest.param({"labels": {"koord-app": "koordlet"}}, True, id="its label"),
        pytest.param(
            {"namespace": "koordinator-system", "ownerReferences": [{**KOORDLET_OWNER, "controller": False}]},
            True,
            id="an owner that does not control it",
        ),
    ],
)
async def test_only_the_daemon_set_of_koordlet_owns_the_cpus(
    metadata: dict[str, Any], applies: bool, tmp_path: Path
) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent(apply=True) as agent:
        place(around.server.store, NODE, "a", "1-2")
        around.see_pods(agent)
        pod = {"metadata": {"name": "koordlet-x", "namespace": "tenant", "uid": "x", **metadata}, "status": {}}
        agent.pods.observe("ADDED", pod)
        await agent.apply()
        assert bool(around.services.updates) is applies
        assert ("koordlet" in agent._why_not) is not applies


@pytest.mark.parametrize(
    ("label", "kube_qos", "cpus"),
    [
        ("BE", "Guaranteed", "0,3-15"),
        ("BE", "Burstable", "0,3-15"),
        ("", "BestEffort", "0-15"),
        ("LS", "BestEffort", "0-15"),
    ],
)
async def test_rights_to_cpus_follow_from_the_class_of_the_kubelet(
    label: str, kube_qos: str, cpus: str, tmp_path: Path
) -> None:
    async with world(tmp_path, PLAIN) as around, around.agent(apply=True) as agent:
        host = agent.host.read()
        assert host is not None
        held = DecidedPod("default", "lsr", "1", cpus=CpuSet.parse("1-2"), koordinator_qos="LSR", kube_qos="Guaranteed")
        running = (DecidedContainer("c", "id", running=True),)
        pod = DecidedPod("default", "p", "2", koordinator_qos=label, kube_qos=kube_qos, containers=running)
        assert [str(target.cpus) for target in wanted(host, [held, pod])] == [cpus]
