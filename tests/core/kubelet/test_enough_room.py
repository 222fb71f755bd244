"""Amounts that tell of a pod, and states that it cannot tell apart, against the kubelet's whole procedure."""

from random import Random

from koord_numa.core.cpus.kubelet_options import CLOSEST_NUMA
from koord_numa.core.kubelet.admit import DryRunAdmitted, admit_pod, dry_run
from koord_numa.core.kubelet.bounds import (
    NOTHING,
    Bound,
    Sight,
    at_most,
    everything,
    has_room,
    has_room_between,
    together,
)
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.hypothesis import Signature
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, gpus, init, node, pod, sidecar
from tests.machines import machine
from tests.tables import each_row

POLICIES = [*KubeletPolicy, KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE]
ORDERS = (CpuReuse.LEAST, CpuReuse.MOST)


def some_node(dice: Random) -> KubeletNode:
    """Of two to four NUMA nodes, without CPU ids, as exporters show it."""
    shape = dice.choice(["2x1x4x2", "2x2x2x2", "4x1x4x1", "3x1x6x1"])
    sockets, per_socket, *_ = map(int, shape.split("x"))
    numas = range(sockets * per_socket)
    here = node(
        shape,
        dice.choice(POLICIES),
        dice.choice([KubeletScope.CONTAINER, KubeletScope.CONTAINER, KubeletScope.POD]),
        dice.choice([None, {numa: {"memory": dice.randint(4, 12) * GI, "hugepages-2Mi": 8 << 20} for numa in numas}]),
        devices={"vendor.com/gpu": _devices(dice, len(numas)), "vendor.com/nic": _devices(dice, len(numas))},
    )
    return replace(here, ids_are_real=False, aligns_by_socket=dice.random() < 0.2, packs=dice.random() < 0.5)


def _devices(dice: Random, numas: int) -> DevicePool:
    alone = [1 << dice.randrange(numas) for _ in range(dice.randint(1, 6))]
    return gpus(*(mask | (dice.random() < 0.3) << dice.randrange(numas) for mask in alone))


def some_pod(dice: Random) -> PodRequest:
    """Of up to four containers of any kind."""
    parts = []
    for place in range(dice.randint(1, 4)):
        kind = dice.choice((init, sidecar, app, app))
        devices = {name: dice.choice((0, 1, 1, 2)) for name in ("gpu", "nic") if dice.random() < 0.3}
        pages = {"pages": dice.randint(1, 2)} if dice.random() < 0.1 else {}
        memory = dice.randint(1, 4) * GI
        parts.append(kind(dice.choice([0.5, 1, 1, 2, 2, 3, 4, 6]), f"c{place}", memory=memory, **devices, **pages))
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    return pod(*parts, app(dice.choice([0.5, 1, 2, 3]), "last"))


def lived(dice: Random, here: KubeletNode) -> KubeletState:
    """Pods came, and some have left."""
    state = KubeletState.empty(here)
    for number in range(dice.randint(0, 7)):
        state = admit_pod(state, str(number), some_pod(dice)).state
    for uid in list(state.pods):
        state = state.without(uid) if dice.random() < 0.3 else state
    return state


def admits(state: KubeletState, asked: PodRequest) -> bool:
    """Whichever CPUs of its init containers the pod takes over."""
    return all(isinstance(dry_run(state, asked, reuse=order), DryRunAdmitted) for order in ORDERS)


@each_row("seed", range(60), every=6)
def test_a_pod_that_has_room_is_admitted(seed: int) -> None:
    dice = Random(seed)
    state = lived(dice, some_node(dice))
    for asked in [some_pod(dice) for _ in range(20)]:
        if has_room(asked, state.node, state.managers):
            assert admits(state, asked), asked


@each_row("seed", range(60), every=6)
def test_a_pod_that_has_room_keeps_it_whoever_leaves_and_comes(seed: int) -> None:
    dice = Random(seed)
    here = some_node(dice)
    state = lived(dice, here)
    most = Bound(KubeletState.empty(here).managers)
    for asked in [some_pod(dice) for _ in range(8)]:
        coming = [one for one in [some_pod(dice) for _ in range(dice.randint(0, 3))] if _stays(here, one)]
        kept = together(map(everything, coming)) if coming else NOTHING
        if not has_room_between(asked, here, Bound(state.managers), most, kept):
            continue
        for _ in range(8):
            left = state
            for uid in dice.sample(sorted(state.pods), dice.randint(0, len(state.pods))):
                left = left.without(uid)
            for number, one in enumerate(coming):
                left = admit_pod(left, f"coming-{number}", one).state
            assert admits(left, asked), asked


def _stays(here: KubeletNode, coming: PodRequest) -> bool:
    """Return true if the pod makes no memory group."""
    if not here.pins_memory:
        return True
    if here.config.topology_policy is KubeletPolicy.SINGLE_NUMA_NODE:
        return True
    empty = KubeletState.empty(here).managers
    return here.config.topology_policy is KubeletPolicy.RESTRICTED and has_room(coming, here, empty)


@each_row("seed", range(60), every=6)
def test_states_that_look_alike_treat_the_pod_alike(seed: int) -> None:
    dice = Random(seed)
    here = some_node(dice)
    states = [lived(dice, here) for _ in range(12)]
    states += [_rewired(dice, state) for state in states for _ in range(2)]
    for asked in [some_pod(dice) for _ in range(6)]:
        sight = Sight(asked, here)
        known: dict[Signature, list[object]] = {}
        for state in states:
            found = [_outcome(state, asked, order) for order in ORDERS]
            assert known.setdefault(sight.of(state), found) == found, asked


def _rewired(dice: Random, state: KubeletState) -> KubeletState:
    """With the devices in another order, as they may be when other ones were taken."""
    devices = {}
    for name, pool in state.node.devices.items():
        near = [device.near for device in pool.devices]
        dice.shuffle(near)
        devices[name] = replace(gpus(*near), assumed=dice.random() < 0.5)
    return replace(state, node=replace(_variant(dice, state.node), devices=devices))


def _variant(dice: Random, here: KubeletNode) -> KubeletNode:
    """With other sockets, and with the option that looks at distances or without it."""
    other = machine("4x1x2x2") if dice.random() < 0.5 and len(here.machine.numa_ids) == 4 else here.machine
    if [*other.numa_bits.values()] != [*here.machine.numa_bits.values()]:
        other = here.machine
    options = {CLOSEST_NUMA: dice.random() < 0.5}
    return replace(here, machine=other, config=replace(here.config, topology_options=options))


def _outcome(state: KubeletState, asked: PodRequest, order: CpuReuse) -> object:
    """By container the hint and the memory's place; ``None`` for a refusal."""
    answer = dry_run(state, asked, reuse=order)
    if not isinstance(answer, DryRunAdmitted):
        return None
    return [(given.hint, [block.mask for block in given.memory]) for given in answer.grant.containers]


def test_an_init_container_is_counted_once() -> None:
    """6 CPUs of 8 are free on each NUMA node: enough for what the app takes over, also where its memory is not the init container's."""
    state = KubeletState.empty(replace(node("2x1x4x2", reserved="0-1,8-9"), ids_are_real=False))
    asked = pod(init(6), app(4, "a"), app(2, "b"))
    assert at_most(asked).cpus == 6
    assert has_room(asked, state.node, state.managers)
    assert not has_room(pod(init(2), app(4, "a"), app(4, "b")), state.node, state.managers)


def test_init_containers_of_two_kinds_tie_to_two_numa_nodes() -> None:
    """The first takes CPUs of NUMA node 0, the second the only GPU, of NUMA node 1: no place is left for the app."""
    here = replace(node("2x1x4x2", devices={"vendor.com/gpu": gpus(2)}), ids_are_real=False)
    state = KubeletState.empty(here)
    asked = pod(init(1, "a"), init(0.5, "b", gpu=1), app(1, gpu=1))
    assert not has_room(asked, here, state.managers)
    assert not admits(state, asked)
