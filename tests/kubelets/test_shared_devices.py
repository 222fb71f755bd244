"""Answers where devices are near several NUMA nodes, against every way in which they may be."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, permutations
from random import Random
from typing import Any, Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.kubelet.prediction import would_admit
from koord_numa.core.kubelet.state import DevicePool, KubeletState, PluginDevice
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from koord_numa.wire import parse_pod
from tests.kubelets.shared_devices import SharedLife
from tests.kubelets.strategies import GIB, GPU, container
from tests.tables import each_row

Worlds = list[KubeletState]

ASKED: Final = tuple(
    {"initContainers": [container("init", 1, 1, init)] if init is not None else [], "containers": apps}
    for init, apps in (
        (None, [container("app", 1, 1, 1)]),
        (None, [container("app", 1, 1, 2)]),
        (None, [container("app", 1, 1, 1), container("more", 1, 1, 1)]),
        (None, [container("app", 1, 1, 2), container("more", 1, 1, 1)]),
        (1, [container("app", 1, 1, 1)]),
        (1, [container("app", 1, 1, 2)]),
        (1, [container("app", 3, 1, 1)]),
        (2, [container("app", 1, 1, 2)]),
        (2, [container("app", 1, 1, 1)]),
        (1, [container("app", 1, 1, 1), container("more", 1, 1, 1)]),
    )
)


def life_of(
    wiring: list[int], policy: KubeletPolicy, *, in_full: bool, numa: int = 3, memory: str = "None"
) -> SharedLife:
    """A node of NUMA nodes with four CPUs each, the first with three that may be exclusive."""
    hardware = Shape(1, numa, 4, 1, 16 * GIB, devices={GPU: (0,) * len(wiring)}).build()
    config = KubeletConfig(
        topology_policy=policy, cpu_policy="static", memory_policy=memory, reserved_cpus=CpuSet.of((0,))
    )
    node = NodeDescription("n", hardware, Style.KUBELET, config, reserved=CpuSet.of((0,)))
    return SharedLife(node, wiring, in_full=in_full)


def wirings_like(wiring: list[int], numa: int = 3) -> Iterator[tuple[int, ...]]:
    """All with as many devices near each NUMA node, in every order of the plugin."""
    counts = _counts(wiring)
    for masks in combinations_with_replacement(range(1, 1 << numa), len(wiring)):
        if _counts(masks) == counts:
            yield from sorted(set(permutations(masks)))


def _counts(masks: Any) -> Counter[int]:
    return Counter(numa for mask in masks for numa in range(mask.bit_length()) if mask >> numa & 1)


def worlds(life: SharedLife, placed: list[dict[str, Any]]) -> Worlds:
    """The states of every kubelet that would have shown the same, after these pods."""
    shown = life.in_use()
    found = []
    for masks in wirings_like(life.wiring):
        pool = DevicePool(tuple(PluginDevice(f"gpu{place}", mask) for place, mask in enumerate(masks)))
        state: KubeletState | None = KubeletState.empty(replace(life.agent.kubelet, devices={GPU: pool}))
        for number, spec in enumerate(placed):
            verdict = (
                admit_pod(state, f"p{number}", parse_pod(life.pod("pod", spec)).request) if state is not None else None
            )
            state = verdict.state if isinstance(verdict, Admitted) else None
        if state is not None and life.in_use_of(state) == shown:
            found.append(state)
    return found


@each_row("policy", [KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED])
@each_row("in_full", [True, False])
@each_row("seed", [1, 2, 3, 5, 17], every=2)
def test_a_yes_holds_however_devices_are_shared(policy: KubeletPolicy, in_full: bool, seed: int) -> None:
    dice = Random(seed)
    wiring = [dice.randint(1, 7) for _ in range(4)]
    life = life_of(wiring, policy, in_full=in_full)
    placed: list[dict[str, Any]] = []
    for _ in range(3):
        states = worlds(life, placed)
        assert states
        for spec in ASKED:
            answer = life.ask(spec)
            request = parse_pod(life.pod("question", spec)).request
            said = f"{[bin(mask) for mask in wiring]} after {placed}: {spec} {answer}"
            if not isinstance(answer, Rejection):
                assert all(isinstance(admit_pod(state, "question", request), Admitted) for state in states), said
        spec = dice.choice(ASKED[:2])
        if isinstance(life.ask(spec), Rejection):
            return
        life.place(spec)
        placed.append(spec)
        life.settle()


WITH_SIDECAR: Final = tuple(
    {"containers": [container("app", 1, memory, 1), container("sidecar", 1, 1)]} for memory in (1, 7, 12)
)
"""Pods with one GPU in all, with memory in two containers."""


@each_row("seed", [1, 2, 4, 6, 9], every=2)
def test_one_gpu_is_placed_if_every_possible_kubelet_admits_it(seed: int) -> None:
    """Under best-effort, memory that is bound with a GPU may cause a rejection, so the GPU's NUMA nodes matter."""
    dice = Random(seed)
    life = life_of(
        [dice.choice((1, 2, 4, 3, 5, 6)) for _ in range(4)],
        KubeletPolicy.BEST_EFFORT,
        in_full=bool(seed % 2),
        memory="Static",
    )
    filler = {"containers": [container("filler", 2, 9, 1)]}
    placed: list[dict[str, Any]] = [filler, filler]
    for spec in placed:
        life.place(spec)
        life.settle()
    for _ in range(3):
        states = worlds(life, placed)
        for spec in WITH_SIDECAR:
            request = parse_pod(life.pod("question", spec)).request
            admits = all(isinstance(admit_pod(state, "question", request), Admitted) for state in states)
            assert isinstance(life.ask(spec), Rejection) != admits, f"{placed} {spec}"
        spec = dice.choice(WITH_SIDECAR)
        if isinstance(life.ask(spec), Rejection):
            break
        life.place(spec)
        placed.append(spec)
        life.settle()
    assert len(placed) > 2


@each_row("is_settled", [False, True])
def test_a_pod_of_two_gpus_is_not_placed_on_a_pair_of_numa_nodes_that_they_may_not_be_near(*, is_settled: bool) -> None:
    """Two GPUs on four NUMA nodes, each near two of them: which two is not published."""
    life = life_of([0b0011, 0b1100], KubeletPolicy.RESTRICTED, in_full=True, numa=4)
    seen = life.seen()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    view = replace(seen.offer, is_settled=is_settled)
    with_gpus, without = (
        parse_pod(life.pod("question", {"containers": [container("app", 6, 1, *gpus)]})).request for gpus in ((2,), ())
    )
    answer = would_admit(with_gpus, view)
    assert isinstance(answer, Rejection)
    assert "may be near several NUMA nodes" in answer.detail
    assert not isinstance(would_admit(without, view), Rejection)
