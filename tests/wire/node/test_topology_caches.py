"""Unchanged parts of a topology are not parsed again, and cached values equal parsed values."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.wire import names, parse_topology, zones
from koord_numa.wire import topologies as cpu_topology
from koord_numa.wire import topologies as reserved
from koord_numa.wire.parsing import ParsedCache
from tests.wire.objects import KOORDINATOR_NRT, KUBELET_NRT, Object, annotated, changed

CACHES: Sequence[tuple[Any, str]] = (
    (cpu_topology, "_MACHINES"),
    (zones, "_CONFIGS"),
    (reserved, "_RESERVED"),
    (zones, "_ZONES"),
)

NEWS: Sequence[tuple[str, Sequence[str]]] = (
    (
        names.CPU_MANAGER_POLICY,
        ('{"policy":"static","reservedCPUs":"0-1"}', '{"policy":"none"}', '{"policy":"odd"}', "{"),
    ),
    (names.KUBELET_OPTIONS, ('{"topologyManagerPolicy":"restricted"}', '{"topologyManagerPolicy":"odd"}')),
    (names.POD_CPU_ALLOCS, ('[{"uid":"u","cpuset":"2-3","managedByKubelet":true}]', "[]", "{}")),
    (names.RESERVATION, ('{"reservedCPUs":"4"}', '{"resources":{"cpu":"1"}}', '{"reservedCPUs":"x"}')),
    (names.SYSTEM_QOS_RESOURCE, ('{"cpuset":"5"}', '{"cpuset":"5","cpusetExclusive":false}')),
)
ATTRIBUTES: Sequence[tuple[str, Sequence[str]]] = (
    (names.ATTRIBUTE_TOPOLOGY_POLICY, ("single-numa-node", "none", "odd")),
    (names.ATTRIBUTE_RESERVED_CPUS, ("0", "0-1", "x")),
    (names.ATTRIBUTE_FINGERPRINT, ("pfp0v0010000000000000001", "pfp0v0010000000000000002")),
    (f"{names.ATTRIBUTE_CPU_OPTION}FullPcpusOnly", ("true", "false")),
)


@st.composite
def topologies(draw: st.DrawFn) -> Object:
    """One of the two writers, some annotations and attributes replaced, under one of two names."""
    found: Object = draw(st.sampled_from([KOORDINATOR_NRT, KUBELET_NRT]))
    for name, texts in NEWS:
        if (text := draw(st.sampled_from([None, *texts]))) is not None:
            found = annotated(found, name, text)
    told = [(name, draw(st.sampled_from([None, *values]))) for name, values in ATTRIBUTES]
    attributes = [{"name": name, "value": value} for name, value in told if value is not None]
    found = changed(found, "attributes", attributes)
    found = changed(found, "topologyPolicies", draw(st.sampled_from([[], ["Restricted"], ["odd"]])))
    return changed(found, "metadata name", draw(st.sampled_from(["worker-1", "worker-2"])))


def read_afresh(obj: Object) -> NodeResourceTopology:
    with pytest.MonkeyPatch.context() as patch:
        for module, name in CACHES:
            patch.setattr(module, name, ParsedCache(1 << 20))
        return parse_topology(obj)


@given(st.lists(topologies(), min_size=2, max_size=6))
def test_earlier_topologies_do_not_show(objects: list[Object]) -> None:
    for obj in objects:
        assert parse_topology(obj) == read_afresh(obj)


def test_a_kubelet_that_did_not_change_is_read_once() -> None:
    first = parse_topology(KUBELET_NRT)
    other = [each for each in KUBELET_NRT["attributes"] if each["name"] != names.ATTRIBUTE_FINGERPRINT]
    news = changed(KUBELET_NRT, "attributes", [*other, {"name": names.ATTRIBUTE_FINGERPRINT, "value": "pfp0v001ff"}])
    second = parse_topology(changed(news, "metadata name", "worker-9"))
    assert second.kubelet is first.kubelet
    assert second.fingerprint == "pfp0v001ff"


def test_what_is_malformed_is_said_of_each_object() -> None:
    broken = annotated(KOORDINATOR_NRT, names.RESERVATION, "{")
    one, other = (parse_topology(changed(broken, "metadata name", name)).problem for name in ("worker-1", "worker-2"))
    assert one.replace("worker-1", "worker-2") == other != one
