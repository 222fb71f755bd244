"""
Random stories of kubelet-owned nodes: pods come, run and leave while events are late and requests fail.

The oracle is a scheduler that starts when the story has ended: a pod must not wait that the new scheduler would place.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from random import Random
from typing import Any, Final

from koord_numa.ports import ClusterError, Conflict, NotLeader, Unavailable, UnknownOutcome
from koord_numa.sandbox.machines.description import NodeDescription, read_descriptions
from tests.engine.preemption.kubelet_life import DEVICE, MACHINE, KubeletLife

USUAL: Final = ("decide", "plan", "hear", "obey", "scan", "topology", "second")
UNUSUAL: Final = ("again", "relist", "lease", "finish", "fail")

ERRORS: Final = (Unavailable, UnknownOutcome, Conflict, NotLeader)

FAILURES: Final[tuple[tuple[str, type[ClusterError]], ...]] = (
    *((call, error) for call in ("bind before", "nominate", "evict before") for error in ERRORS),
    ("bind after", UnknownOutcome),
    ("evict after", UnknownOutcome),
)

WAIT: Final = 5
"""Longest wait in seconds of a pod that a scheduler that starts now would place, apart from back-off."""

BACKOFF: Final = 60
"""Longest back-off in seconds after a few failed requests or a rejection by a kubelet (``coolDown``)."""

POLICIES: Final = ("single-numa-node", "single-numa-node", "restricted", "best-effort", "none")


class Story:
    """A story that is drawn from a seed: how often each action comes, and in which order."""

    def __init__(self, seed: int, actions: tuple[str, ...], *nodes: NodeDescription) -> None:
        self.dice = Random(seed)
        self.life = KubeletLife(*nodes, dice=self.dice)
        self.life.server.fail = self.fail
        self.failures = deque[tuple[str, type[ClusterError]]]()
        self.failed = False
        self.actions = actions
        self.weights = [self.dice.choice((1, 1, 3) if action in USUAL else (0, 0, 0.3)) for action in actions]

    def fail(self, call: str) -> None:
        """Raise the next failure that was drawn, if it is one of this call."""
        if self.failures and self.failures[0][0] == call:
            self.failed = True
            raise self.failures.popleft()[1]("as told")

    async def act(self) -> None:
        """Execute one action."""
        action = self.dice.choices(self.actions, self.weights)[0]
        if action == "fail":
            self.failures.append(self.dice.choice(FAILURES))
            return
        act: Callable[[], object] = getattr(self.life, action)
        if isawaitable(done := act()):
            await done

    def calm(self) -> None:
        """No request fails from now on, and the lease is held."""
        self.failures.clear()
        self.life.world.lease.held = True
        self.life.engine.kick()


@dataclass(frozen=True)
class Outcome:
    """Result of a story: pods that wait although a new scheduler places them, and the evictions that this scheduler requested."""

    seed: int
    waiting: tuple[str, ...] = ()
    helped: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


async def outcome(seed: int) -> Outcome | None:
    """Play one story. ``None`` if no pod waits for ``WAIT`` seconds while a new scheduler would help it."""
    dice = Random(seed)
    nodes = machines(dice)
    story = Story(seed, USUAL if dice.random() < 0.5 else (*USUAL, *UNUSUAL), *nodes)
    await play(story, dice, has_devices=any(device.resource == DEVICE for device in nodes[0].hardware.devices))
    life = story.life
    story.calm()
    await rest(life, WAIT + BACKOFF if story.failed or life.refused else WAIT)
    # A rejection by a kubelet closes a node to its kind of pod for a while.
    refused = len(life.refused)
    await rest(life, BACKOFF if len(life.refused) > refused else 0)
    first = await _helped(life, seed)
    if first is None:
        return None
    # An eviction of another pod may have made the room just now.
    await rest(life, WAIT)
    later = await _helped(life, seed)
    if later is None or not (set(first.helped) & set(later.helped) or (not first.helped and not later.helped)):
        return None
    return later


async def _helped(life: KubeletLife, seed: int) -> Outcome | None:
    """Return the waiting pods that a new scheduler places or evicts pods for, ``None`` if there are none."""
    if not (waiting := life.waiting()):
        return None
    fresh = life.restarted()
    await fresh.rest(WAIT)
    helped = [uid for uid in waiting if uid in fresh.held]
    evictions = [call for call in fresh.server.calls if call.startswith("evict")]
    if not (helped or evictions):
        return None
    return Outcome(seed, tuple(waiting), tuple(helped), tuple(fresh.server.calls), tuple(life.refused))


async def rest(life: KubeletLife, seconds: int) -> None:
    """Seconds in which nothing is late; ends when no pod waits."""
    for _ in range(seconds):
        if not life.waiting():
            return
        await life.rest(1)


async def play(story: Story, dice: Random, *, has_devices: bool) -> None:
    """Let pods come, finish and be deleted, with random actions in between."""
    life = story.life
    for number in range(dice.randrange(4, 14)):
        chance = dice.random()
        uids = sorted(life.server.objects)
        uid = dice.choice(uids) if uids else ""
        if chance < 0.7 or not uids:
            cpus, priority = dice.choice((1, 2, 2, 4, 4, 4, 6, 8)), dice.choice((9000, 9100, 9100, 9500, 9900))
            memory = dice.choice((0, 0, 0, 8, 20))
            devices = dice.choice((0, 0, 1, 2)) if has_devices else 0
            life.create(f"p{number}", cpus, priority, memory, devices)
            if dice.random() < 0.1:
                life.bind_elsewhere(f"p{number}")
        elif chance >= 0.85:
            life.delete(uid)
        elif uid in life.held and "deletionTimestamp" not in life.server.objects[uid]["metadata"]:
            life.end(uid.removeprefix("uid-"))
        for _ in range(dice.randrange(25)):
            await story.act()


def machines(dice: Random) -> tuple[NodeDescription, ...]:
    """One to three nodes of one configuration."""
    kubelet: dict[str, Any] = {
        "topologyPolicy": dice.choice(POLICIES),
        "topologyScope": dice.choice(("pod", "container")),
    }
    machine: dict[str, Any] = {**MACHINE, "kubelet": kubelet}
    if dice.random() < 0.3:
        kubelet["memoryPolicy"] = "Static"
        machine["reservedMemory"] = "1Gi"
    if dice.random() < 0.3:
        machine["devices"] = {DEVICE: [0, 0, 1, 1]}
    if (count := dice.choice((1, 1, 1, 2, 3))) > 1:
        machine["count"] = count
    return tuple(read_descriptions({"machines": [machine]}, Path()))
