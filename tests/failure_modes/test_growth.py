"""
Memory does not grow with pods of ever new names, labels, amounts, images and resources.

``--shapes`` is the number of pods. From 50,000 on all caches are full before the end, and resident memory is compared too.
"""

import gc
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import pytest
from cachetools import LRUCache

import koord_numa
from koord_numa.engine.ranking import label_columns
from koord_numa.engine.ranking.pod_counts import MOST_UNFINISHED, REMEMBERED_COUNTS
from koord_numa.ports import DELETED
from koord_numa.wire import names, parse_pod
from koord_numa.wire.parsing import ParsedCache
from koord_numa.wire.pod_annotations import resource_status
from tests.engine.preemption.kubelet_life import ApiServer
from tests.engine.world import World, make_node, make_topology, make_world
from tests.failure_modes.containers import container_sizes

TIME = "2026-01-01T00:00:00Z"
SPARE = 60
"""Entries by which a container may vary from one moment to another."""
FULL = 50_000
"""Pods after which every cache is full: the caches of parsed pods have 32,768 entries."""
SPARE_MB = 30
"""Resident memory may vary by as much. Without bounds 15,000 further pods would take 130 MB."""
CLASSES = 16
"""Classes of pods that are remembered, so that few pods fill these caches."""
IDS = "engine._node_table.labels._columns[].ids"
"""Arrays as long as there are nodes, in columns that are made anew when their key is named again."""
BOUNDED = {"engine._node_table.pods._counts_by_anchor._by_anchor": REMEMBERED_COUNTS + MOST_UNFINISHED}
"""Indexes of caches that drop an eighth of their entries when they are full, so that their sizes vary by that."""
KEYED_BY_TYPES = {
    "koord_numa.core.cel.compiler._row",
    "koord_numa.core.value_objects._constructor",
    "koord_numa.settings._known_keys",
    "koord_numa.wire.errors.fields_of",
    "koord_numa.wire.parsing._as_go_reads",
    "koord_numa.wire.parsing._names_of",
}
PROGRAMS = ("koord_numa.cli", "koord_numa.view", "koord_numa.sandbox", "koord_numa.node")
"""Packages that are not part of the scheduler."""


async def test_nothing_grows_with_ever_new_pods(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_columns, "MOST_COLUMNS", CLASSES)
    shapes = int(request.config.getoption("--shapes"))
    world = small_world()
    early: dict[str, int] = {}
    early_mb = 0.0
    for number in range(shapes):
        if number == shapes * 3 // 4:
            early, early_mb = sizes(world), resident_mb()
        await live(world, number)
    late = sizes(world)
    most = {path: early.get(path, 0) + SPARE for path in late} | BOUNDED
    assert {path: size for path, size in late.items() if size > most[path] and path != IDS} == {}
    if shapes >= FULL:
        late_mb = resident_mb()
        request.node.user_properties.append(("resident MB", f"{early_mb:.0f}, {late_mb:.0f}"))
        assert late_mb < early_mb + SPARE_MB


def test_every_cache_has_a_bound() -> None:
    """Caches without a bound are keyed by types and classes of the program."""
    unbounded = {
        f"{module.__name__}.{name}"
        for module in modules()
        for name, value in vars(module).items()
        if isinstance(value, type(lru_cache(len))) and value.cache_parameters()["maxsize"] is None
    }
    assert unbounded == KEYED_BY_TYPES


def test_every_module_with_a_cache_of_pods_is_in_the_table() -> None:
    document = (Path(__file__).parents[2] / "docs" / "failure-modes.md").read_text()
    package = Path(next(iter(koord_numa.__path__)))
    sources = [path for part in ("engine", "cluster", "app") for path in (package / part).rglob("*.py")]
    sources += (package / "wire").glob("pod*.py")
    keeping = [path for path in sources if re.search(r"(LRUCache|TTLCache|ParsedCache)(\[.*\])?\(", path.read_text())]
    assert len(keeping) > 10
    assert [name for path in keeping if f"`{(name := str(path.relative_to(package)))}`" not in document] == []


def test_caches_of_parsed_objects_have_bounded_text() -> None:
    """Parsed objects take about four times the room of their text."""
    caches = {
        id(value): value for module in modules() for value in vars(module).values() if isinstance(value, ParsedCache)
    }
    assert len(caches) >= 8
    assert sum(cache.characters for cache in caches.values()) <= 200 << 20


def small_world() -> World:
    """Six nodes whose CPUs the scheduler owns."""
    world = make_world(annotate=resource_status, server=ApiServer(), settings=f"{{rememberedClasses: {CLASSES}}}")
    world.engine.handle.placed = LRUCache(maxsize=CLASSES)
    for number in range(6):
        world.engine.handlers.nodes.observe("ADDED", make_node(f"n{number}", cpu=64, memory=256))
        topology = make_topology(f"n{number}", sockets=2, numa=2, cores=8, memory=256)
        world.engine.handlers.topologies.observe("ADDED", topology)
    world.engine.handlers.budgets.replace([])
    return world


def pod_object(number: int) -> dict[str, Any]:
    """A pod that shares nothing with any other."""
    labels = {"app": f"a{number}", "pod-template-hash": f"h{number}"}
    amounts = {"cpu": f"{200 + number % 3000}m", "memory": f"{64 + number % 2000}Mi"}
    if number % 3 == 0:
        labels["koordinator.sh/qosClass"] = "LSR"
        amounts["cpu"] = str(1 + number % 4)
    if number % 11 == 0:
        amounts[f"example.org/r{number}"] = "1"  # on no node
    spec: dict[str, Any] = {
        "schedulerName": "koord-numa",
        "containers": [
            {"name": "main", "image": f"i{number}", "resources": {"requests": amounts, "limits": dict(amounts)}}
        ],
    }
    if number % 5 == 0:
        term = {"labelSelector": {"matchLabels": {"app": f"a{number}"}}, "topologyKey": "kubernetes.io/hostname"}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if number % 7 == 0:
        spec["tolerations"] = [{"key": f"k{number}", "operator": "Exists"}]
    annotations = {"x": "y" * 500, "n": str(number)}
    if number % 6 == 1:
        annotations |= {names.GANG_NAME: f"g{number}", names.GANG_MIN: str(1 + number % 4 // 2)}
    if number % 8 == 1:
        spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": f"c{number}"}}]  # there is none
    if number % 9 == 1:
        spec["resourceClaims"] = [{"name": "d", "resourceClaimName": f"d{number}"}]  # there is none
    if number % 10 == 1:
        spec["containers"][0]["ports"] = [{"containerPort": 1 + number % 60_000, "hostPort": 1 + number % 60_000}]
    if number % 13 == 0:
        spec["nodeSelector"] = {f"s{number}": "x"}
    metadata = {
        "name": f"p{number}",
        "namespace": "default",
        "uid": f"uid-p{number}",
        "creationTimestamp": TIME,
        "labels": labels,
        "annotations": annotations,
    }
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


async def live(world: World, number: int) -> None:
    """A pod comes, is bound and runs, or waits, and is deleted."""
    server = world.server
    assert isinstance(server, ApiServer)
    obj = pod_object(number)
    uid = obj["metadata"]["uid"]
    server.objects[uid] = obj
    server.write(uid, "ADDED")
    deliver(world, server)
    await world.settle()
    deliver(world, server)
    if obj["spec"].get("nodeName"):
        obj["status"] = {"phase": "Running", "startTime": TIME}
        server.write(uid)
    server.write(uid, DELETED)
    deliver(world, server)
    server.orders.clear()
    server.calls.clear()
    world.diary.events.clear()
    world.clock.now += 1.0
    await world.engine._keep_house()
    await world.engine.preemption.work()


def deliver(world: World, server: ApiServer) -> None:
    """All events of pods reach the engine."""
    while server.news:
        event, obj = server.news.popleft()
        pod, handlers = parse_pod(obj), world.engine.handlers
        (handlers.bound_pods if pod.node else handlers.pending_pods).observe(event, pod)


def sizes(world: World) -> dict[str, int]:
    """Lengths of the containers that the scheduler and the modules of its program keep, caches apart."""
    gc.collect()
    found = {f"engine{path}": size for path, size in container_sizes(world.engine).items()}
    for module in modules():
        for name, value in vars(module).items():
            if isinstance(value, dict | list | set) and not name.startswith("__"):
                found[f"{module.__name__}.{name}"] = len(value)
    return found


def modules() -> Iterator[ModuleType]:
    """The scheduler's modules."""
    for info in walk_packages(koord_numa.__path__, "koord_numa."):
        if not info.name.startswith(PROGRAMS) and not info.name.endswith("__main__"):
            yield sys.modules.get(info.name) or import_module(info.name)


def resident_mb() -> float:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
