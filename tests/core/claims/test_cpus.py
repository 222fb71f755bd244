"""The external allocator of dra-driver-cpu: CPU ids and siblings from the slice, cpusets by policy, and what is refused with a reason."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.claims.allocator import Allocated
from koord_numa.core.claims.cpus import CpuClaimError, CpuSite, assign_cpus, cpus_of, layout_topology
from koord_numa.core.claims.inventory import ResourceSlice
from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.cpus.bind_policies import CpuPolicies
from koord_numa.core.cpus.cpu_request import CpuRequest
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from tests.core.claims.worlds import Json, claim_object, decide, device, published, request
from tests.tables import each_row

WHOLE_CORES = CpuPolicies(CpuRequest(0, CpuBindPolicy.FULL_PCPUS))
STRICT = CpuPolicies(CpuRequest(0, CpuBindPolicy.FULL_PCPUS), required=True)


def cpu_slice(ids: str, layout: str, **more: Any) -> ResourceSlice:
    """Return the slice that the CPU driver publishes of a machine."""
    texts = {"dra.cpu/cpuIDs": ids, "dra.cpu/smtLayout": layout}
    attributes = {"dra.cpu/numCPUs": len(CpuSet.parse(ids or "0-7"))} | {
        key: text for key, text in texts.items() if text
    }
    capacity = {"dra.cpu/cpu": str(len(CpuSet.parse(ids or "0-7")))}
    machine = device("cpudevmachine", attributes=attributes, capacity=capacity, allowMultipleAllocations=True)
    return published("dra.cpu", [machine], **more)


def cpus(name: str, amount: str) -> Json:
    """A request of CPUs."""
    return request(name, "dra.cpu", capacity={"requests": {"dra.cpu/cpu": amount}})


def given_by(
    slice_: ResourceSlice, *claims: Json, site: CpuSite | None = None, policies: CpuPolicies = WHOLE_CORES
) -> list[str]:
    """The cpusets of the claims, in their order."""
    answer = decide([slice_], claims)
    assert isinstance(answer, Allocated)
    devices = {it.id: it for it in slice_.devices}
    made = assign_cpus(answer.allocations, devices, site or CpuSite(), policies)
    return [str(cpus_of(allocation)) for allocation in made]


@each_row(
    ("layout", "expected"),
    [
        ("0-7>4", "0,4 1,5 2,6 3,7"),
        ("8-15>4;0-1", "0 1 8,12 9,13 10,14 11,15"),
        ("0-3>1", "0-1 2-3"),
        ("0-2", "0 1 2"),
    ],
)
def test_cores_are_read_from_the_layout(layout: str, expected: str) -> None:
    assert " ".join(str(CpuSet(core.bits)) for core in layout_topology(layout).cores) == expected


@each_row("layout", ["0-6>4", "x", "0-7>", "0-7>x", "0-7>0", "7-0"])
def test_a_layout_that_contradicts_itself_is_refused(layout: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        layout_topology(layout)


def test_claims_get_whole_cores_and_never_reserved_or_taken_cpus() -> None:
    slice_ = cpu_slice("1-3,5-7", "0-7>4")
    assert given_by(slice_, claim_object(cpus("a", "2")), claim_object(cpus("b", "2"), name="other")) == ["1,5", "2,6"]
    assert given_by(slice_, claim_object(cpus("a", "2")), site=CpuSite(taken=CpuSet.parse("1,5"))) == ["2,6"]


def test_requests_of_a_claim_get_their_cpus_and_configuration() -> None:
    slice_ = cpu_slice("0-7", "0-7>4")
    answer = decide([slice_], [claim_object(cpus("main", "4"), cpus("io", "2"))])
    assert isinstance(answer, Allocated)
    (made,) = assign_cpus(answer.allocations, {it.id: it for it in slice_.devices}, CpuSite(), WHOLE_CORES)
    assert [(config.requests, config.opaque.parameters if config.opaque else "") for config in made.configs] == [
        (("main",), '{"apiVersion":"v1alpha1","cpuConfig":{"cpuset":"0-1,4-5"}}'),
        (("io",), '{"apiVersion":"v1alpha1","cpuConfig":{"cpuset":"2,6"}}'),
    ]


def test_numa_nodes_come_from_the_topology_of_the_node() -> None:
    machine = regular_topology(1, 2, 2, 2)  # NUMA 0: CPUs 0-3, NUMA 1: 4-7
    slice_ = cpu_slice("0-7", "0-7>1")
    assert given_by(slice_, claim_object(cpus("a", "2")), site=CpuSite(machine, mask=0b10)) == ["4-5"]


@each_row(
    ("slice_", "claim", "site", "text"),
    [
        (cpu_slice("", ""), claim_object(cpus("a", "2")), CpuSite(), "does not say which CPUs it has"),
        (cpu_slice("0-7", ""), claim_object(cpus("a", "2")), CpuSite(), "does not say which CPUs are siblings"),
        (cpu_slice("0-7", "0-6>4"), claim_object(cpus("a", "2")), CpuSite(), "has no sibling"),
        (cpu_slice("0-7", "0-7>4"), claim_object(cpus("a", "1500m")), CpuSite(), "whole CPUs"),
        (cpu_slice("0-7", "0-7>4"), claim_object(cpus("a", "4")), CpuSite(taken=CpuSet.parse("0-5")), "not enough"),
        (
            cpu_slice("0-7", "0-7>4"),
            claim_object(cpus("a", "2"), config=[{"opaque": {"driver": "dra.cpu", "parameters": {}}}]),
            CpuSite(),
            "configures dra.cpu already",
        ),
    ],
    ids=["no ids", "no layout", "bad layout", "fraction", "taken", "configured"],
)
def test_what_the_driver_would_refuse_is_refused_with_the_reason(
    slice_: ResourceSlice, claim: Json, site: CpuSite, text: str
) -> None:
    with pytest.raises(CpuClaimError, match=text):
        given_by(slice_, claim, site=site)


def test_a_slice_without_ids_is_served_by_the_topology() -> None:
    machine = regular_topology(1, 1, 4, 2)
    assert given_by(cpu_slice("", ""), claim_object(cpus("a", "2")), site=CpuSite(machine)) == ["0-1"]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 255))
def test_cpusets_are_exact_free_and_disjoint(sizes: list[int], taken: int) -> None:
    slice_ = cpu_slice("0-15", "0-15>8")
    held = CpuSet(taken)
    for number, size in enumerate(sizes):
        try:
            (text,) = given_by(slice_, claim_object(cpus("a", str(size)), name=f"c{number}"), site=CpuSite(taken=held))
        except CpuClaimError:
            assert 16 - len(held) < size
            return
        found = CpuSet.parse(text)
        assert len(found) == size
        assert not found & held
        held |= found


def test_a_required_policy_is_not_traded_away() -> None:
    slice_ = cpu_slice("0-7", "0-7>4")
    with pytest.raises(CpuClaimError, match="whole free cores"):
        given_by(slice_, claim_object(cpus("a", "2")), site=CpuSite(taken=CpuSet.parse("0-3")), policies=STRICT)
