"""A container that chooses as many CPUs as an init container, from the same pool and by the same hint, gets the same CPUs."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import lowest
from koord_numa.core.kubelet.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.state import KubeletNode, KubeletState, ManagerState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod, sidecar
from tests.tables import each_row

OPTIONS: Final = (
    (),
    ("full-pcpus-only",),
    ("distribute-cpus-across-numa",),
    ("distribute-cpus-across-cores",),
    ("align-by-socket",),
    ("prefer-align-cpus-by-uncorecache",),
)
SHAPES: Final = ("2x1x8x2", "2x2x4x2", "1x2x6x1", "1x2x4x4")


def held(some: KubeletNode, free: int, asked: PodRequest, order: CpuReuse) -> dict[ContainerKind, int] | None:
    """The CPU bits of the containers of each kind, on a node of which just these are free; ``None`` where the pod is refused."""
    empty = KubeletState.empty(some)
    managers = ManagerState(empty.managers.cpus & free, empty.managers.devices, empty.managers.memory)
    answer = dry_run(replace(empty, managers=managers), asked, reuse=order)
    if not isinstance(answer, DryRunAdmitted):
        return None
    found = dict.fromkeys(ContainerKind, 0)
    for grant in answer.grant.containers:
        found[grant.kind] |= grant.cpus.bits
    return found


@given(
    st.sampled_from(SHAPES),
    st.sampled_from(OPTIONS),
    st.sampled_from(list(KubeletPolicy)),
    st.sampled_from(list(KubeletScope)),
    st.integers(0, (1 << 32) - 1),
    st.integers(1, 10),
)
def test_the_kubelet_hands_the_same_cpus_on(
    shape: str, options: tuple[str, ...], policy: KubeletPolicy, scope: KubeletScope, free: int, count: int
) -> None:
    """Its own procedure, on CPUs with ids: under all options, whatever is free."""
    some = node(shape, policy, scope=scope, options=options)
    taken = held(some, free, pod(init(count), app(count)), CpuReuse.BY_ID)
    assert taken is None or taken[ContainerKind.INIT] == taken[ContainerKind.APP]


@each_row("order", [CpuReuse.LEAST, CpuReuse.MOST])
@each_row(
    ("asked", "more"),
    [
        pytest.param(pod(init(3), app(3)), 0, id="as many"),
        pytest.param(pod(init(3), init(3), app(3)), 0, id="two init containers"),
        pytest.param(pod(init(1), init(3), app(3)), 1, id="the other init container's may be left"),
        pytest.param(pod(init(3), app(2)), 3, id="fewer may be others"),
        pytest.param(pod(init(3), sidecar(1), app(3)), 3, id="a sidecar has taken of the pool"),
        pytest.param(pod(init(2), sidecar(1), init(3), app(3)), 2, id="chosen after the sidecar"),
    ],
)
def test_where_ids_are_made_up_nothing_else_is_feared(asked: PodRequest, more: int, order: CpuReuse) -> None:
    """``more``: so many CPUs init containers hold at most beside those of the others, where no option is known."""
    some = replace(node("2x1x8x2", KubeletPolicy.SINGLE_NUMA_NODE), ids_are_real=False)
    taken = held(some, some.machine.bits, asked, order)
    assert taken is not None
    beside = taken[ContainerKind.INIT] & ~taken[ContainerKind.APP] & ~taken[ContainerKind.SIDECAR]
    assert beside.bit_count() <= more
    if order is CpuReuse.LEAST:
        assert beside.bit_count() == more


@pytest.mark.parametrize("order", [CpuReuse.LEAST, CpuReuse.MOST])
def test_another_hint_of_the_same_socket_offers_the_same_cpus(order: CpuReuse) -> None:
    """The hint names NUMA node 0, the CPUs are of NUMA node 1, which has fewer free: the next hint must name that one."""
    real = node("2x2x4x2", KubeletPolicy.RESTRICTED, options=("align-by-socket",))
    some = replace(real, ids_are_real=False, aligns_by_socket=True)
    first, second, *_ = some.machine.numa_bits.values()
    free = lowest(first, 4) | lowest(second, 2)
    taken = held(some, free, pod(init(2), app(2)), order)
    assert taken is not None
    assert taken[ContainerKind.APP] == taken[ContainerKind.INIT] == lowest(second, 2)
