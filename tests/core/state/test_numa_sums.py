"""Laws of the sums that a ledger brings up to date with each pod: whenever they are asked for, they say what the holdings say."""

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpu_topology import regular_topology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.numa.policies import NumaOccupancy
from koord_numa.core.objects.request import NumaSpec, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import NumaPolicy
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.state.numa_free import numa_left, numa_occupancy

MACHINE = regular_topology(1, 4, 4, 1)
NODE = Inventory("node", machine=MACHINE, zones=tuple((numa, {"cpu": 4000, "memory": 100}) for numa in range(4)))

amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/unlisted"]), st.integers(0, 9000), max_size=3)
numas = st.dictionaries(st.integers(0, 5), amounts, max_size=3)  # 4 and 5 are not among those of the node
policies = st.sampled_from([NumaPolicy.NONE, NumaPolicy.SINGLE_NUMA_NODE])


HOLDINGS = st.builds(
    Holding,
    pod=st.builds(PodKey, st.just("ns"), st.just("pod"), st.sampled_from("abcdef")),
    amounts=amounts,
    cpus=st.sampled_from([0, 0x3, 0xF0, 0x18, 0xF000]).map(CpuSet),
    numa=numas.map(lambda numa: tuple(sorted(numa.items()))),
    request=policies.map(lambda policy: PodRequest(containers=(), numa=NumaSpec(policy=policy))),
)
"""Any holding, also with CPUs on other NUMA nodes than its amounts."""


def _left(ledger: Ledger) -> dict[str, list[int]]:
    def held(name: str, numa: int) -> int:
        return sum(dict(holding.numa).get(numa, {}).get(name, 0) for holding in ledger)

    return {name: [there[numa] - held(name, numa) for numa in NODE.numa_ids] for name, there in NODE.totals.items()}


def _occupancy(ledger: Ledger) -> NumaOccupancy:
    single, several = set[int](), set[int]()
    for holding in ledger:
        used = {numa for numa, _ in holding.numa} | {cpu // 4 for cpu in holding.cpus}
        if len(used) > 1:
            several |= used
        elif holding.request is not None and holding.request.numa.policy is NumaPolicy.SINGLE_NUMA_NODE:
            single |= used
    return NumaOccupancy(sum(1 << numa for numa in single), sum(1 << numa for numa in several))


@given(st.lists(st.tuples(HOLDINGS, st.booleans()), max_size=12))
def test_sums_follow_every_pod_that_comes_or_goes(history: list[tuple[Holding, bool]]) -> None:
    ledger = Ledger()
    # Asked at once, so that everything after it is counted one by one.
    assert (numa_left(NODE, ledger), numa_occupancy(ledger, MACHINE)) == (_left(ledger), NumaOccupancy())
    for holding, stays in history:
        ledger.hold(holding)
        assert (numa_left(NODE, ledger), numa_occupancy(ledger, MACHINE)) == (_left(ledger), _occupancy(ledger))
        if not stays:
            ledger.release(holding.pod.uid)
            assert (numa_left(NODE, ledger), numa_occupancy(ledger, MACHINE)) == (_left(ledger), _occupancy(ledger))


@given(st.lists(HOLDINGS, max_size=8))
def test_sums_asked_for_late_count_the_pods_that_are_there(history: list[Holding]) -> None:
    ledger = Ledger.of(history)
    assert (numa_left(NODE, ledger), numa_occupancy(ledger, MACHINE)) == (_left(ledger), _occupancy(ledger))


def test_sums_of_a_node_that_changed_are_made_anew() -> None:
    ledger = Ledger.of([Holding(PodKey("ns", "a", "u"), {"cpu": 1000}, numa=((1, {"cpu": 1000}),))])
    larger = Inventory("node", machine=MACHINE, zones=((0, {"cpu": 8000}), (1, {"cpu": 8000})))
    assert numa_left(NODE, ledger)["cpu"] == [4000, 3000, 4000, 4000]
    assert numa_left(larger, ledger) == {"cpu": [8000, 7000]}
    assert numa_occupancy(ledger, None) == NumaOccupancy()


def test_occupancy_goes_by_numa_id() -> None:
    """Ids with gaps: position 1 is not NUMA node 1."""
    single = PodRequest(numa=NumaSpec(NumaPolicy.SINGLE_NUMA_NODE))
    both = {"cpu": 1000}
    ledger = Ledger.of(
        [
            Holding(PodKey("ns", "one", "one"), both, numa=((63, both),), request=single),
            Holding(PodKey("ns", "two", "two"), {"cpu": 2000}, numa=((0, both), (5, both)), request=single),
        ]
    )
    assert numa_occupancy(ledger, None) == NumaOccupancy(single=1 << 63, shared=1 << 0 | 1 << 5)
