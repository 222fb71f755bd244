"""The sweep over many nodes must say exactly what the scalar functions say node by node."""

from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.fit.zones import fits_zones
from koord_numa.core.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.request import Container, PodRequest
from koord_numa.core.resources import ResourceList
from koord_numa.core.score.zone_sweep import ZoneColumns
from koord_numa.core.score.zones import score_zones
from koord_numa.core.vocabulary import ContainerKind, CpuOwner, KubeletPolicy, KubeletScope, KubeQos, ScoringType

_LISTED = ("cpu", "memory", "hugepages-2Mi", "nvidia.com/gpu")
_REQUESTED = (*_LISTED, "ephemeral-storage", "vendor.com/nic")
_amount = {"cpu": st.sampled_from([0, 500, 1000, 2000, 2500, 4000, 8000])}
_small = st.integers(0, 6)


def _amounts(names: tuple[str, ...]) -> st.SearchStrategy[ResourceList]:
    return st.fixed_dictionaries({}, optional={name: _amount.get(name, _small) for name in names})


@st.composite
def topologies(draw: st.DrawFn) -> NodeResourceTopology:
    """One node: up to four zones with gaps in their ids, several policies, sometimes missing distances."""
    ids = sorted(draw(st.sets(st.integers(0, 6), max_size=4)))
    zones = []
    for numa in ids:
        free = draw(_amounts(_LISTED))
        zones.append(Zone(numa, free, free, free))
    costs = {(a, b): draw(st.sampled_from([10, 12, 32])) for a in ids for b in ids if draw(st.booleans())}
    return NodeResourceTopology(
        node="node",
        owner=CpuOwner.KUBELET,
        zones=tuple(zones),
        distances=costs,
        kubelet=KubeletConfig(
            topology_policy=draw(st.sampled_from([KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED])),
            topology_scope=draw(st.sampled_from(KubeletScope)),
            max_numa_nodes=draw(st.sampled_from([2, 8, 16])),
        ),
    )


@st.composite
def pods(draw: st.DrawFn) -> PodRequest:
    """Up to three containers of any kind."""
    return PodRequest(
        containers=tuple(
            Container(f"c{index}", draw(st.sampled_from(ContainerKind)), draw(_amounts(_REQUESTED)))
            for index in range(draw(st.integers(0, 3)))
        ),
        overhead=draw(st.sampled_from([{}, {"cpu": 500}])),
    )


@settings(max_examples=150, deadline=None)
@given(
    nodes=st.lists(st.tuples(topologies(), st.sampled_from([{"nvidia.com/gpu": 8}, {}])), max_size=6),
    pod=pods(),
    qos=st.sampled_from(KubeQos),
    strategy=st.sampled_from(ScoringType),
)
def test_sweep_says_what_the_scalar_path_says(
    nodes: list[tuple[NodeResourceTopology, ResourceList]], pod: PodRequest, qos: KubeQos, strategy: ScoringType
) -> None:
    weights = {"cpu": 3}
    result = ZoneColumns(nodes).sweep(pod, qos, strategy, weights)
    fits = [fits_zones(pod, qos, topology, allocatable) is None for topology, allocatable in nodes]
    scores = [
        score_zones(pod, qos, topology, strategy, weights) if fit else 0
        for fit, (topology, _) in zip(fits, nodes, strict=True)
    ]
    assert (result.fits.tolist(), result.scores.tolist()) == (fits, scores)
