"""A life drawn from a seed: node, pods, and what happens in which order. The same seed and kinds give the same life."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from koord_numa.core.kubelet.state import DevicePool, KubeletState, PluginDevice
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.machines import NodeDescription
from koord_numa.sandbox.machines.agents import KubeletAgent
from tests.kubelets.exporters.exported_life import ExportedLife
from tests.kubelets.law import broken
from tests.kubelets.lives.kinds import LONGEST, Kinds
from tests.kubelets.lives.nodes import drawn_node
from tests.kubelets.lives.pods import PodShapes
from tests.kubelets.node_life import COINING, OWNER
from tests.kubelets.strategies import GPU

LATEST: Final = 120.0
"""Seconds after which what an exporter saw has been published: less than the scheduler reckons with (``RECENT`` of ``topology_lag.py``)."""

WEIGHTS: Final = {
    "place": (4, 6, 10),
    "admit": (3, 4, 8),
    "end": (1, 2, 4),
    "hear": (1, 3, 8),
    "scan": (1, 2),
    "deliver": (1, 2),
    "skip": (0, 1),
    "wait": (0, 1),
    "calm": (0, 1, 3),
}
"""Weights of the events. Every life draws its own weights: some are calm, some late and some full of departures."""


@dataclass
class DrawnLife(ExportedLife):
    """As ``ExportedLife``; ``wiring`` is what each GPU is near, as a mask, where they are near several NUMA nodes."""

    wiring: tuple[int, ...] = ()
    scanned_at: list[float] = field(default_factory=list)
    published_at: float = 0.0

    def new_agent(self) -> KubeletAgent:
        """A kubelet whose devices are near these NUMA nodes."""
        agent = super().new_agent()
        if self.wiring:
            pool = DevicePool(tuple(PluginDevice(f"gpu{place}", near) for place, near in enumerate(self.wiring)))
            agent.kubelet = replace(agent.kubelet, devices={**agent.kubelet.devices, GPU: pool})
            agent._state = KubeletState.empty(agent.kubelet)
        return agent

    def scan(self) -> None:
        """The exporter looks, and it is known when."""
        super().scan()
        self.scanned_at.append(self.now)

    def deliver(self) -> None:
        """The oldest scan reaches the cache."""
        if self.scans:
            self.published_at = self.scanned_at.pop(0)
        super().deliver()

    def restart(self, unpublished: int) -> None:
        """Scans that are published meanwhile reach only the next scheduler."""
        while len(self.scanned_at) > unpublished:
            self.published_at = self.scanned_at.pop(0)
        super().restart(unpublished)

    def skip(self) -> None:
        """Another scan is published before the oldest one reaches the cache: only the latest version of an object is."""
        if len(self.scans) > 1:
            self.scans.popleft()
            self.scanned_at.pop(0)

    def calm(self) -> None:
        """Everything under way arrives."""
        self.settle()

    def keep_up(self) -> None:
        """Exporters are slow, and not dead: what they publish is of the last minutes."""
        while self.published_at < self.now - LATEST:
            if not self.scans:
                self.scan()
            self.deliver()

    @property
    def asked(self) -> int:
        """Number of questions to the engine."""
        return self.placed + len(self.waited)


def drawn_life(seed: int, kinds: Kinds) -> DrawnLife:
    """The life of this seed, from its first action to its last."""
    random = Random(seed)
    node = drawn_node(random, kinds)
    life = DrawnLife(
        node,
        exporter=random.choice(kinds.exporters),
        owner=random.choice((OWNER, OWNER, OWNER, COINING, None)),
        wiring=_wiring(random, node) if kinds.shared_devices.drawn(random) else (),
    )
    specs = PodShapes(random, node).specs()
    weights = {what: random.choice(choices) for what, choices in WEIGHTS.items()}
    restarts, refusals = kinds.restarts.drawn(random), kinds.foreign_refusals.drawn(random)
    weights |= {"restart": int(restarts), "lie": int(refusals)}
    actions = _actions(life, specs)
    for _ in range(kinds.length or random.randint(LONGEST // 3, LONGEST)):
        life.keep_up()
        chosen = random.choices(list(weights), list(weights.values()))[0]
        actions[chosen](random.randrange(8))
    life.settle()
    return life


def wrong_yes(life: DrawnLife) -> list[str]:
    """Return the pods that the kubelet rejected against the engine's answer, with the life before; empty if it admitted all."""
    found = broken(life)
    machine = life.description.hardware.machine
    shape = f"{machine.counts}, {len(machine.numa_ids)} NUMA nodes, reserved {life.description.reserved}, wiring {life.wiring}"
    return found and [f"{life.exporter}, hidden={life.description.hidden}, {shape}", *found]


def _actions(life: DrawnLife, specs: list[dict[str, Any]]) -> dict[str, Callable[[int], None]]:
    """Every action by its name; it is told a number that says which pod or for how long."""
    plain = ("admit", "hear", "scan", "deliver", "skip", "calm", "lie")
    return {
        "place": lambda which: life.place(specs[which % len(specs)]),
        "end": life.end,
        "restart": lambda which: life.restart(which % 3),
        "wait": lambda which: life.wait(5.0 * which),
        **{name: partial(_plainly, getattr(life, name)) for name in plain},
    }


def _plainly(act: Callable[[], None], _which: int) -> None:
    act()


def _wiring(random: Random, node: NodeDescription) -> tuple[int, ...]:
    """Return the NUMA nodes near each GPU: one or several, in most cases a pair of neighbors."""
    numa = len(node.hardware.machine.numa_ids)
    found = []
    for device in node.hardware.devices:
        here = 1 << (device.numa or 0)
        beside = 1 << ((device.numa or 0) ^ 1) % numa
        found.append(random.choice((here, here | beside, here | beside, random.randint(1, (1 << numa) - 1))))
    return tuple(found)
