"""Caches of what is parsed are bounded by the text it comes from: no author of large objects decides how much memory they take."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from koord_numa.wire import parse_pod, parse_topology, pod_cache, zones
from koord_numa.wire.parsing import ParsedCache
from koord_numa.wire.workloads import label_pairs
from tests.wire.objects import KUBELET_NRT, changed

LARGE = 200_000  # characters


def test_what_is_used_is_kept_and_the_rest_forgotten() -> None:
    cache = ParsedCache[str, int](5000)
    for number in range(5):
        cache.put(str(number), number, 1000)
        assert cache.get("0") == 0
    cache.put("5", 5, 1000)
    assert [cache.get(str(number)) for number in range(6)] == [0, None, 2, 3, 4, 5]


def test_a_small_value_counts_too() -> None:
    cache = ParsedCache[int, int](5120)
    for number in range(100):
        cache.put(number, number, 0)
    assert len(cache) == 10


def test_one_value_does_not_take_the_room_of_all_others() -> None:
    cache = ParsedCache[str, str](5000)
    cache.put("small", "kept", 1000)
    assert cache.put("large", "not kept", 3000) == "not kept"
    assert (cache.get("small"), cache.get("large")) == ("kept", None)


def pods() -> Iterator[None]:
    while True:
        for number in range(LARGE):
            ports = [{"containerPort": 1, "hostPort": 1 + port} for port in range(LARGE // 40)]
            container = {"name": "c", "ports": ports, "resources": {"requests": {"cpu": f"{1 + number}m"}}}
            raw = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "a", "namespace": "b", "uid": "c"},
                "spec": {"schedulerName": "koord-numa", "nodeName": "n", "containers": [container]},
            }
            assert parse_pod(raw).problem == ""
            yield


def topologies() -> Iterator[None]:
    for number in range(LARGE):
        costs = [{"name": "node-1", "value": number}] * (LARGE // 30)
        assert parse_topology(changed(KUBELET_NRT, "zones 0 costs", costs)) is not None
        yield


@pytest.mark.parametrize(
    ("module", "caches", "objects"),
    [
        pytest.param(pod_cache, ("_REQUESTS", "_BOUND", "_CONSTRAINTS"), pods, id="pods"),
        pytest.param(zones, ("_ZONES",), topologies, id="zones"),
    ],
)
def test_large_objects_are_not_all_kept(
    module: Any, caches: tuple[str, ...], objects: Callable[[], Iterator[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in caches:
        monkeypatch.setattr(module, name, ParsedCache(10 * LARGE))
    for _ in zip(range(25), objects(), strict=False):
        pass
    assert [0 < len(getattr(module, name)) <= 12 for name in caches] == [True] * len(caches)


def test_many_labels_are_not_kept_for_others() -> None:
    many = {f"l{number}": "x" for number in range(500)}
    assert label_pairs(many) == tuple(sorted(many.items()))
    assert label_pairs(many) is not label_pairs(many)
    few = {"app": "a"}
    assert label_pairs(few) is label_pairs(dict(few))


def test_a_long_name_of_a_zone_is_no_numa_node() -> None:
    assert zones._numa_of("x" * 5000 + "-node-1") is None
    assert zones._numa_of("x" * 200 + "-node-123456789") == 123456789
