"""Zones that did not change are not parsed again, and a cached zone is what parsing would give."""

import pytest

from koord_numa.core.objects.node import Zone
from koord_numa.wire import parse_topology
from koord_numa.wire import zones as zones_module
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.parsing import ParsedCache
from tests.wire.objects import KUBELET_NRT, changed


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zones_module, "_ZONES", ParsedCache(zones_module.REMEMBERED_TEXT))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The NUMA nodes of which zones were parsed."""
    forget(monkeypatch)
    found: list[int] = []
    original = zones_module._parse_zone

    def noted(numa: int, model: zones_module.ZoneModel, path: FieldPath) -> Zone:
        found.append(numa)
        return original(numa, model, path)

    monkeypatch.setattr(zones_module, "_parse_zone", noted)
    return found


def test_only_the_zone_that_changed_is_parsed(parsed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    first = parse_topology(KUBELET_NRT)
    parsed.clear()
    resources = KUBELET_NRT["zones"][0]["resources"]
    other = changed(KUBELET_NRT, "zones 0 resources", [{**resources[0], "available": "1"}, *resources[1:]])
    second = parse_topology(other)
    assert parsed == [first.zones[0].numa]
    assert second.zones[1:] == first.zones[1:]
    assert all(one is another for one, another in zip(first.zones[1:], second.zones[1:], strict=True))
    forget(monkeypatch)
    assert parse_topology(other) == second


def test_a_malformed_zone_is_not_remembered(parsed: list[int]) -> None:
    broken = changed(KUBELET_NRT, "zones 0 resources", [{"name": "cpu", "capacity": "x"}])
    assert parse_topology(broken).problem == parse_topology(broken).problem != ""
