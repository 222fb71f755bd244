"""The normalisation table of the proposal, and machines larger than upstream can count."""

from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner
from koord_numa.core.score.least_numa_nodes import aligned_request, normalized, score_least_numa_nodes
from tests.tables import each_row


@each_row(
    ("highest", "zones", "plain", "optimal"),
    [
        (2, 1, 50, 75),
        (2, 2, 0, 25),
        (8, 1, 88, 94),
        (8, 8, 4, 10),
        (16, 2, 88, 91),
        (64, 64, 36, 36),
        (128, 3, 100, 100),
    ],
)
def test_normalisation_follows_the_proposal(highest: int, zones: int, plain: int, optimal: int) -> None:
    assert normalized(zones, optimal=False, highest=highest) == plain
    assert normalized(zones, optimal=True, highest=highest) == optimal


def test_more_zones_than_the_divisor_score_zero_and_not_less() -> None:
    assert normalized(9, optimal=False, highest=2) == 0


def _node(zones: int, free: int) -> NodeResourceTopology:
    return NodeResourceTopology(
        node="node",
        owner=CpuOwner.KUBELET,
        zones=tuple(Zone(numa, {"cpu": free}, {"cpu": free}, {"cpu": free}) for numa in range(zones)),
        distances={
            (a, b): 10 if a == b else 12 if a // 4 == b // 4 else 32 for a in range(zones) for b in range(zones)
        },
        kubelet=KubeletConfig(max_numa_nodes=64),
    )


def _pod(cpu: int) -> PodRequest:
    return PodRequest(containers=(Container("app", ContainerKind.APP, {"cpu": cpu}, {"cpu": cpu}),))


def test_sixty_four_zones_are_no_limit() -> None:
    assert score_least_numa_nodes(_pod(12_000), _node(64, 4000)) == 97


def test_a_request_that_fits_nowhere_scores_zero() -> None:
    assert score_least_numa_nodes(_pod(12_000), _node(2, 4000)) == 0


GIVEN = {"cpu": 8000}


def _containers(*asked: dict[str, int]) -> PodRequest:
    return PodRequest(tuple(Container(f"c{i}", ContainerKind.APP, one, one) for i, one in enumerate(asked)))


def _zones(*free: tuple[int, int]) -> NodeResourceTopology:
    """Zones in the order in which an NRT lists them: NUMA id and milli-CPU."""
    zones = tuple(Zone(numa, {"cpu": cpu}, {"cpu": cpu}, {"cpu": cpu}) for numa, cpu in free)
    near = {(a, b): 10 if a == b else 20 for a, _ in free for b, _ in free}
    return NodeResourceTopology(node="node", owner=CpuOwner.KUBELET, zones=zones, distances=near)


def test_resources_of_the_whole_node_do_not_matter() -> None:
    topology = _zones((0, 8000), (1, 8000))
    assert score_least_numa_nodes(_containers({"cpu": 3000, "example.com/license": 1}), topology) == 94
    assert score_least_numa_nodes(_containers({"example.com/license": 1}), topology) == 100


def test_zones_out_of_order() -> None:
    """The second container finds what the first one left of the zones that it took, however an NRT lists them."""
    asked = _containers({"cpu": 6000}, {"cpu": 6000})
    in_order, out_of_order = _zones((0, 4000), (1, 2000), (2, 8000)), _zones((2, 8000), (0, 4000), (1, 2000))
    assert score_least_numa_nodes(asked, in_order) == score_least_numa_nodes(asked, out_of_order) == 82


def test_the_pod_as_a_unit_counts_init_containers_and_overhead() -> None:
    init = Container("init", ContainerKind.INIT, {"cpu": 5000})
    apps = (
        Container("a", ContainerKind.APP, {"cpu": 1000}),
        Container("b", ContainerKind.APP, {"cpu": 2000, "memory": 1}),
    )
    assert aligned_request(PodRequest(containers=(init, *apps), overhead={"cpu": 250})) == {"cpu": 5250, "memory": 1}
