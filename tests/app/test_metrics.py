"""Numbers for Prometheus: names, shapes and values after something has happened."""

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from koord_numa.app.metrics import NodeFreeCpus
from koord_numa.app.runtime import Options, Runtime
from koord_numa.sandbox.apiserver import ApiServer
from tests.cluster.objects import until
from tests.e2e.world import JsonObject, pinned, shared, world
from tests.operator.operating import operating
from tests.tables import each_row

NODES: JsonObject = {
    "machines": [
        {"name": "ours", "sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"},
        {"name": "kubelets", "style": "kubelet", "sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"},
    ]
}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def attempt(result: str) -> tuple[tuple[str, str], ...]:
    return (("profile", "koord-numa"), ("result", result))


async def scrape(runtime: Runtime, path: str) -> Samples:
    url = f"http://127.0.0.1:{runtime.http_server.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_pages_after_some_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, NODES) as rack:
        rack.server.store.patch("nodes", "kubelets", {"spec": {"unschedulable": True}})
        rack.create([pinned("a", 2, policy="SingleNUMANode"), shared("big", "100")])
        async with operating(rack.server, tmp_path, monkeypatch) as runtime:
            await until(lambda: rack.unbound() == ["big"])
            await until(lambda: runtime.scheduler.queue.numbers().unschedulable == 1)
            await until(lambda: not runtime.scheduler.cache.assumed)
            page, nodes = await asyncio.gather(scrape(runtime, "/metrics"), scrape(runtime, "/metrics/nodes"))
    expected = {
        ("scheduler_schedule_attempts_total", attempt("scheduled")): 1.0,
        ("scheduler_schedule_attempts_total", attempt("error")): 0.0,
        ("scheduler_scheduling_attempt_duration_seconds_count", attempt("scheduled")): 1.0,
        ("scheduler_scheduling_attempt_duration_seconds_count", attempt("error")): 0.0,
        ("scheduler_pod_scheduling_sli_duration_seconds_count", (("attempts", "1"),)): 1.0,
        ("scheduler_pod_scheduling_attempts_count", ()): 1.0,
        ("scheduler_pod_scheduling_attempts_bucket", (("le", "1"),)): 1.0,
        ("scheduler_unschedulable_pods", (("plugin", "NodeResourcesFit"), ("profile", "koord-numa"))): 1.0,
        ("scheduler_unschedulable_pods", (("plugin", "NodeUnschedulable"), ("profile", "koord-numa"))): 1.0,
        ("scheduler_pending_pods", (("queue", "unschedulable"),)): 1.0,
        ("scheduler_pending_pods", (("queue", "active"),)): 0.0,
        ("scheduler_queue_incoming_pods_total", (("event", "PodAdd"), ("queue", "active"))): 2.0,
        ("scheduler_cache_size", (("type", "nodes"),)): 2.0,
        ("scheduler_cache_size", (("type", "pods"),)): 1.0,
        ("scheduler_cache_size", (("type", "assumed_pods"),)): 0.0,
        ("koord_numa_placements_total", (("alignment", "aligned"),)): 1.0,
        ("koord_numa_placements_total", (("alignment", "not_attempted"),)): 0.0,
        ("koord_numa_bind_failures_total", (("error", "Conflict"),)): 0.0,
        ("koord_numa_kubelet_refusals_total", (("reason", "TopologyAffinityError"),)): 0.0,
        ("koord_numa_rejections_total", (("reason", "taint"),)): 0.0,
        ("koord_numa_free_cpus", ()): 30.0,
        ("koord_numa_untrusted_nodes", ()): 0.0,
        ("leader_election_master_status", (("name", "koord-numa"),)): 1.0,
    }
    assert {key: page.get(key) for key in expected} == expected
    assert page["koord_numa_watch_relists_total", (("resource", "nodes"),)] >= 1  # and again as the new leader
    assert page["scheduler_scheduling_algorithm_duration_seconds_count", ()] >= 2
    assert page["scheduler_schedule_attempts_total", attempt("unschedulable")] >= 1
    assert page["koord_numa_rejections_total", (("reason", "resources"),)] >= 1
    failures = (("event", "ScheduleAttemptFailure"), ("queue", "unschedulable"))
    assert page["scheduler_queue_incoming_pods_total", failures] >= 1
    expected_nodes = {
        ("koord_numa_node_free_cpus", (("node", "ours"),)): 14.0,
        ("koord_numa_node_largest_aligned_cpus", (("node", "ours"),)): 8.0,
        ("koord_numa_node_fragmentation", (("node", "ours"),)): 0.0,
        ("koord_numa_node_free_cpus", (("node", "kubelets"),)): 16.0,
        ("koord_numa_node_untrusted", (("node", "ours"),)): 0.0,
    }
    assert {key: nodes.get(key) for key in expected_nodes} == expected_nodes
    assert 0 <= nodes["koord_numa_node_topology_age_seconds", (("node", "ours"),)] < 60


async def test_metrics_and_their_documentation_are_equal(tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    documented = re.findall(r"^\| `(\w+)(?:\{[^}]*\})?` \| (\w+) \|", document, re.MULTILINE)
    async with ApiServer() as server:
        runtime = await Runtime.connect(Options(kubeconfig=server.write_kubeconfig(tmp_path / "kubeconfig"), port=None))
        questions = runtime._status_providers()
        families = [*questions.metrics.collect(), *questions.nodes.collect()]
        await runtime.api.close()
    exposed = [(family.name + ("_total" if family.type == "counter" else ""), family.type) for family in families]
    assert sorted(documented) == sorted(exposed)


async def test_a_missing_definition_is_a_warning_of_readyz(tmp_path: Path) -> None:
    definition = yaml.safe_load((Path(__file__).parents[2] / "crds" / "noderesourcetopologies.yaml").read_text())
    async with ApiServer() as server:
        runtime = await Runtime.connect(Options(kubeconfig=server.write_kubeconfig(tmp_path / "kubeconfig"), port=None))
        topologies, warnings = runtime.informers.topologies, runtime._status_providers().warnings
        assert topologies is not None
        found = []
        for installed in (False, True):
            if installed:
                server.store.create(definition)
            assert await topologies.read() == []
            found.append(list(warnings()))
        await runtime.api.close()
    assert ["definition of NodeResourceTopologies" in text for text in found[0]] == [True]
    assert found[1] == []


async def test_a_silent_informer_makes_the_process_unhealthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, NODES) as rack, operating(rack.server, tmp_path, monkeypatch) as runtime:
        await until(lambda: runtime.scheduler.ready)
        url = f"http://127.0.0.1:{runtime.http_server.port}/healthz"
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as response:
                assert response.status == 200
            monkeypatch.setattr("koord_numa.app.runtime.STUCK", -1.0)
            async with session.get(url) as response:
                assert response.status == 503
                assert re.search(r"^nodes: no response for \d+ s$", await response.text(), re.MULTILINE)


@each_row(
    ("free", "fragmentation"),
    [
        pytest.param(NodeFreeCpus(16, 8, 8), 0.0, id="two empty NUMA nodes"),
        pytest.param(NodeFreeCpus(8, 8, 8), 0.0, id="one empty, one full"),
        pytest.param(NodeFreeCpus(8, 4, 8), 0.5, id="both half full"),
        pytest.param(NodeFreeCpus(0, 0, 8), 0.0, id="full"),
        pytest.param(NodeFreeCpus(8, 1, 16), 0.875, id="scattered"),
    ],
)
def test_fragmentation(free: NodeFreeCpus, fragmentation: float) -> None:
    assert free.fragmentation == fragmentation
