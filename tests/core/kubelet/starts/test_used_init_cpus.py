"""CPUs that finished init containers may hold on a node that was in use when the scheduler first saw it."""

from random import Random

from koord_numa.core.kubelet.hypothesis import SOMEONE, Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.inferred_state import used_starts
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner, KubeletPolicy, KubeletScope
from koord_numa.core.resources import MILLI
from tests.core.kubelet.nodes import ROOMY, app, init, node, pod, sidecar
from tests.core.kubelet.starts.lived import lived
from tests.tables import each_row

CPUS = 8


def _frame(*used: int, scope: KubeletScope = KubeletScope.CONTAINER, sockets: bool = False) -> NodeConfig:
    """Restricted, with so many CPUs in use on each NUMA node, as zones show them."""
    zones = tuple(
        Zone(numa, {"cpu": CPUS * MILLI}, {"cpu": CPUS * MILLI}, {"cpu": (CPUS - count) * MILLI})
        for numa, count in enumerate(used)
    )
    kubelet = KubeletConfig(
        topology_policy=KubeletPolicy.RESTRICTED,
        topology_scope=scope,
        cpu_policy="static",
        cpu_options={"align-by-socket": True} if sockets else {},
    )
    topology = NodeResourceTopology("n", CpuOwner.KUBELET, zones=zones, kubelet=kubelet, fingerprint_method="all")
    return NodeConfig.of(topology, ROOMY)


def _held(one: Hypothesis) -> tuple[int, ...]:
    return cpus_by_numa(one.loose.get(SOMEONE, 0), one.state.node)


def test_a_sidecar_may_be_on_another_numa_node_than_init() -> None:
    """No later container has CPUs, so that nothing holds any beside those of the init container."""
    starts = used_starts(_frame(2, 0), {"a": pod(sidecar(2), init(3), app(0.5))}, {})
    assert [_held(one) for one in starts] == [(3, 3)]


def test_the_last_container_is_beside_what_init_containers_hold() -> None:
    """The sidecar is on NUMA node 1, so that the app has found 4 CPUs beside all 3."""
    starts = used_starts(_frame(4, 2), {"a": pod(sidecar(2), init(3), app(4))}, {})
    assert [_held(one) for one in starts] == [(3, 0)]


def test_an_init_container_on_two_numa_nodes_holds_either() -> None:
    """One hint of the whole pod: its app may be on one of them alone."""
    starts = used_starts(_frame(2, 0, scope=KubeletScope.POD), {"a": pod(init(10), app(2))}, {})
    assert [_held(one) for one in starts] == [(6, 8)]


def test_in_one_socket_they_are_on_any_numa_node() -> None:
    """Zones without distances: the socket may be the machine, or each NUMA node one."""
    starts = used_starts(_frame(2, 0, sockets=True), {"a": pod(init(3), app(2))}, {})
    assert [_held(one) for one in starts] == [(3, 3), (3, 0)]


@each_row("scope", [KubeletScope.CONTAINER, KubeletScope.POD])
@each_row("sockets", [False, True])
@each_row("seed", range(30), every=3)
def test_no_more_is_held_than_may_be(seed: int, sockets: bool, scope: KubeletScope) -> None:
    """A real kubelet with two NUMA nodes in each of its sockets: what its init containers hold is open at the start."""
    dice = Random(seed)
    options = ("align-by-socket",) if sockets else ()
    truth, requests = _lived(
        KubeletState.empty(node("2x2x4x2", KubeletPolicy.RESTRICTED, scope, options=options)), dice
    )
    machine = truth.node.machine
    lasting = sum(
        given.cpus.bits
        for held in truth.pods.values()
        for given in held.grant.containers
        if given.kind is not ContainerKind.INIT
    )
    starts = used_starts(_frame(*cpus_by_numa(lasting, truth.node), scope=scope, sockets=sockets), requests, {})
    real = tuple(bits.bit_count() for bits in machine.socket_bits.values())
    found = [one for one in starts if not sockets or _sizes(one) == real]
    assert found
    held = cpus_by_numa(machine.bits & ~truth.managers.cpus & ~lasting, truth.node)
    assert any(all(map(int.__le__, held, _held(one))) for one in found)


def _sizes(one: Hypothesis) -> tuple[int, ...]:
    return tuple(bits.bit_count() for bits in one.state.node.machine.socket_bits.values())


def _lived(truth: KubeletState, dice: Random) -> tuple[KubeletState, dict[str, PodRequest]]:
    """A kubelet that pods with init containers have come to and gone from."""
    return lived(truth, 14, _containers, dice)


def _containers(dice: Random) -> list[Container]:
    containers = [app(dice.randint(1, 4))]
    for place in range(dice.randint(0, 3)):
        kind = dice.choice((init, init, sidecar))
        containers.insert(dice.randint(0, len(containers) - 1), kind(dice.choice((1, 2, 3, 9)), f"more{place}"))
    if dice.random() < 0.3:
        containers[-1] = app(0.5)
    return containers
