"""
The claim for a pod's extended resources: requests, counts and mappings as kube-scheduler's ``createRequestsAndMappings`` makes them, and
which resources of a node it is for.
"""

from koord_numa.core.claims.node_resources import (
    IN_MEMORY,
    OTHER_NODES,
    RequestMapping,
    claims_at,
    extended_claim,
    served_by_claim,
)
from koord_numa.core.objects.claims import ClaimToAllocate, MadeClaim, PodClaims
from koord_numa.core.objects.request import Container
from koord_numa.core.objects.vocabulary import ContainerKind
from tests.tables import each_row

GPU, NIC = "example.com/gpu", "example.com/nic"
SERVED = ((GPU, "gpu-class"), (NIC, "nic-class"))
APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR


def container(name: str, kind: ContainerKind = APP, gpu: int = 0, nic: int = 0) -> Container:
    """A container; CPU sorts before the resources of devices, so that these are its second and third request."""
    wanted = {GPU: gpu, NIC: nic, "cpu": 1000}
    return Container(name, kind, {name: amount for name, amount in wanted.items() if amount})


def made(*containers: Container) -> tuple[dict[str, tuple[str, int]], list[tuple[str, str, str]]]:
    """Class and count by request, in the order of the claim, and the mappings in theirs."""
    found = extended_claim(containers, SERVED)
    requests = {it.name: (it.alternatives[0].device_class, it.alternatives[0].count) for it in found.requests}
    assert [it.alternatives[0].name for it in found.requests] == list(requests)
    return requests, [(it.container, it.resource, it.request) for it in found.mappings]


def test_a_request_for_each_container_and_resource() -> None:
    requests, mappings = made(container("a", gpu=2), container("b", gpu=1, nic=3))
    assert list(requests.items()) == [
        ("container-0-request-1", ("gpu-class", 2)),
        ("container-1-request-1", ("gpu-class", 1)),
        ("container-1-request-2", ("nic-class", 3)),
    ]
    # Resource by resource, in the order of their names.
    assert mappings == [
        ("a", GPU, "container-0-request-1"),
        ("b", GPU, "container-1-request-1"),
        ("b", NIC, "container-1-request-2"),
    ]


def test_an_init_container_reuses_devices_and_requests_the_rest() -> None:
    requests, mappings = made(container("load", INIT, gpu=4), container("a", gpu=1), container("b", gpu=2))
    assert requests == {
        "container-0-request-1": ("gpu-class", 1),
        "container-1-request-1": ("gpu-class", 1),
        "container-2-request-1": ("gpu-class", 2),
    }
    assert mappings == [
        ("a", GPU, "container-1-request-1"),
        ("b", GPU, "container-2-request-1"),
        ("load", GPU, "container-1-request-1"),
        ("load", GPU, "container-2-request-1"),
        ("load", GPU, "container-0-request-1"),
    ]


def test_an_init_container_that_needs_no_more_asks_for_nothing() -> None:
    requests, mappings = made(container("load", INIT, gpu=1), container("a", gpu=1), container("b", gpu=2))
    assert list(requests) == ["container-1-request-1", "container-2-request-1"]
    assert mappings[-1] == ("load", GPU, "container-1-request-1")


def test_all_init_containers_share_the_largest_request_of_theirs() -> None:
    requests, mappings = made(
        container("one", INIT, gpu=2), container("two", INIT, gpu=5), container("three", INIT, gpu=5)
    )
    assert requests == {"container-1-request-1": ("gpu-class", 5)}
    assert mappings == [(name, GPU, "container-1-request-1") for name in ("one", "two", "three")]


def test_devices_of_a_sidecar_are_free_only_before_it_starts() -> None:
    requests, mappings = made(
        container("before", INIT, gpu=1), container("log", SIDECAR, gpu=1), container("after", INIT, gpu=1)
    )
    assert requests == {"container-1-request-1": ("gpu-class", 1), "container-2-request-1": ("gpu-class", 1)}
    assert mappings == [
        ("log", GPU, "container-1-request-1"),
        ("before", GPU, "container-1-request-1"),
        ("after", GPU, "container-2-request-1"),
    ]


def test_requests_are_ordered_by_their_names_as_texts() -> None:
    requests, _ = made(*(container(f"c{number}", gpu=1) for number in range(11)))
    assert list(requests)[:3] == ["container-0-request-1", "container-1-request-1", "container-10-request-1"]


@each_row(
    ("allocatable", "served"),
    [({}, SERVED), ({GPU: 0}, SERVED), ({GPU: 1}, SERVED[1:]), ({GPU: 8, NIC: 1}, ()), ({"cpu": 1}, SERVED)],
)
def test_a_node_serves_by_claim_what_it_does_not_advertise(
    allocatable: dict[str, int], served: tuple[tuple[str, str], ...]
) -> None:
    assert served_by_claim(PodClaims(extended=SERVED), allocatable) == served


CONTAINERS = (container("main", gpu=1, nic=1),)


def test_the_extended_claim_follows_the_claims_of_the_pod() -> None:
    own = ClaimToAllocate("", "own")
    claims = PodClaims((own,), extended=SERVED)
    found = claims_at(claims, CONTAINERS, {NIC: 4})
    assert isinstance(found, PodClaims)
    assert [it.name for it in found.to_allocate] == ["own", IN_MEMORY]
    special = found.to_allocate[1]
    assert [it.name for it in special.spec.requests] == ["container-0-request-1"]
    assert special.title("container-0-request-1") == "example.com/gpu of container main"
    assert found.extended == ()
    advertised = claims_at(claims, CONTAINERS, {NIC: 4, GPU: 1})
    assert isinstance(advertised, PodClaims)
    assert advertised.to_allocate == (own,)


def test_a_claim_that_exists_is_used_where_it_asks_for_the_same() -> None:
    requests = extended_claim(CONTAINERS, SERVED).requests
    unallocated = PodClaims(extended=SERVED, made=MadeClaim(requests))
    found = claims_at(unallocated, CONTAINERS, {})
    assert isinstance(found, PodClaims)
    assert found.to_allocate[0].spec.requests == requests
    assert claims_at(unallocated, CONTAINERS, {GPU: 1}) == OTHER_NODES
    # One with devices is not allocated again.
    allocated = PodClaims(extended=SERVED, made=MadeClaim(requests, allocated=True))
    assert claims_at(allocated, CONTAINERS, {}) == PodClaims()
    # Nor is it of any use when no class serves the resources any more.
    assert claims_at(PodClaims(made=MadeClaim(requests)), CONTAINERS, {}) == OTHER_NODES


def test_a_mapping_is_a_value() -> None:
    assert extended_claim((container("a", gpu=1),), SERVED[:1]).mappings == (
        RequestMapping("a", GPU, "container-0-request-1"),
    )
