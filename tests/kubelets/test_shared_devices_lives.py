"""
Lives of nodes whose devices are near several NUMA nodes: pods come and go, and now and then a topology tells. A yes holds on every node on
which all of it would have been the same.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.kubelet.state import DevicePool, KubeletState, PluginDevice
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from koord_numa.wire import parse_pod
from tests.kubelets.shared_devices import SharedLife
from tests.kubelets.strategies import GPU, container
from tests.kubelets.test_shared_devices import ASKED, life_of, wirings_like
from tests.tables import each_row

Spec = dict[str, Any]

STEPS: Final = 9

MOST_WORLDS: Final = 150

COMING: Final[tuple[Spec, ...]] = (
    {"containers": [container("app", 1, 1, 1)]},
    {"containers": [container("app", 1, 1, 2)]},
    {"containers": [container("app", 2, 1, 1)]},
    {"containers": [container("app", 1, 1)]},
    {"containers": [container("app", 3, 1)]},
    {"containers": [container("app", 0, 1, 1)]},
    {"initContainers": [container("init", 1, 1, 1)], "containers": [container("app", 1, 1, 1)]},
    {"initContainers": [container("init", 2, 1)], "containers": [container("app", 1, 1, 1)]},
)

MORE: Final[tuple[Spec, ...]] = (
    *ASKED,
    {"containers": [container("app", 3, 1, 1)]},
    {"containers": [container("app", 1, 1, 3)]},
    {"containers": [container("more", 2, 1), container("app", 1, 1, 1)]},
)

NARROW: Final = (18,)
"""A device in use is near fewer NUMA nodes than it may be, so that the next pod's first container takes more from its second one."""


@dataclass
class Worlds:
    """One life, and every node that cannot be told from its own."""

    life: SharedLife
    states: list[KubeletState]
    log: list[object] = field(default_factory=list)

    def place(self, spec: Spec) -> None:
        """Place a pod if the engine says yes; its verdict is heard."""
        if isinstance(self.life.ask(spec), Rejection):
            return
        self.life.place(spec)
        uid = self.life.arriving[-1][0]
        self.life.admit()
        self._hear()
        verdicts = [admit_pod(state, uid, self.request(self.life.objects[uid]["spec"])) for state in self.states]
        self.states = [verdict.state for verdict in verdicts if isinstance(verdict, Admitted)]
        self.log.append(("place", uid, spec))

    def end(self, which: int) -> None:
        """A pod ends, and that is heard."""
        if not self.life.running:
            return
        uid = self.life.running[which % len(self.life.running)]
        self.life.end(which)
        self._hear()
        self.states = [state.without(uid) for state in self.states]
        self.log.append(("end", uid))

    def scan(self) -> None:
        """A topology tells what is in use."""
        self.life.scan()
        self.life.deliver()
        shown = self.life.in_use()
        self.states = [state for state in self.states if self.life.in_use_of(state) == shown]
        self.log.append(("scan", shown))

    def _hear(self) -> None:
        while self.life.news:
            self.life.hear()

    def request(self, spec: Spec) -> PodRequest:
        """As the engine reads it."""
        return parse_pod(self.life.pod("question", spec)).request


def worlds_of(dice: Random) -> Worlds:
    numa = dice.choice((2, 3, 3, 3))
    wiring = [dice.randint(1, (1 << numa) - 1) for _ in range(dice.choice((3, 4, 4)))]
    policy = dice.choice((KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED))
    life = life_of(wiring, policy, in_full=dice.random() < 0.4, numa=numa)
    life.fingerprint = dice.random() < 0.75
    pools = [
        DevicePool(tuple(PluginDevice(f"gpu{place}", mask) for place, mask in enumerate(masks)))
        for masks in wirings_like(wiring, numa)
    ]
    if len(pools) > MOST_WORLDS:
        pools = dice.sample(pools, MOST_WORLDS)
    return Worlds(life, [KubeletState.empty(replace(life.agent.kubelet, devices={GPU: pool})) for pool in pools])


@each_row("seed", [*range(1, 9), *NARROW])
def test_an_admission_holds_on_every_indistinguishable_node(seed: int) -> None:
    dice = Random(seed)
    worlds = worlds_of(dice)
    said = 0
    for _ in range(STEPS):
        what = dice.random()
        if what < 0.5:
            worlds.place(dice.choice(COMING))
        elif what < 0.7:
            worlds.end(dice.randrange(8))
        else:
            worlds.scan()
        assert not worlds.life.refusals
        for spec in MORE:
            if isinstance(worlds.life.ask(spec), Rejection):
                continue
            said += 1
            verdicts = [admit_pod(state, "question", worlds.request(spec)) for state in worlds.states]
            assert all(isinstance(verdict, Admitted) for verdict in verdicts), f"{worlds.log} {spec}"
    assert said > STEPS
