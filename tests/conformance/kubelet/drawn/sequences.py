"""
Long sequences in the format of ``kubelet-churn``, drawn from seeds.

Machines are those of recorded sequences; options, devices, pods, arrivals, ends, lags, scans and questions are drawn. What the kubelet
answers and the exporter writes is what ``worlds`` lets them, which agrees with every recorded answer and scan.
"""

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from koord_numa.core.cpuset import members
from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.kubelet.state import Grant, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.wire.pods import parse_pod
from tests.conformance.kubelet.churn import pod_object
from tests.conformance.kubelet.drawn.machines import drawn_node, first_topology
from tests.conformance.kubelet.drawn.shapes import Shapes
from tests.conformance.kubelet.worlds import Recorded, available
from tests.conformance.vectors import Case

PEAKS: Final = (12, 16, 20, 25, 30, 35, 40, 50, 58)
"""Pods at once."""

PERIODS: Final = {10: 1, 15: 1, 20: 2, 30: 6, 40: 2, 60: 6, 120: 1}
"""Seconds between scans, and how often."""

LATE: Final = 1 / 3
"""Of the scans of slow exporters so many are published very late."""

MOST_ASKED: Final = 140
"""Questions of a sequence."""

MOST_PLANNED: Final = 600
"""Things that may come to happen in a sequence beside scans, pods that do not fit among them."""

REACTING: Final = 1 / 3
"""In so many of the sequences of resource-topology-exporter there is a scan 1 to 2 s after a change, too."""

OF_CHANGES: Final = 1 / 6
"""After so many of the changes."""

NEXT: Final = 0.01
"""Seconds between events that have an order."""

TRIES: Final = 4
"""Of so many templates one that fits comes."""


@dataclass(frozen=True)
class Pace:
    """Pace of events in seconds. ``slow``: delay at the kubelet and in the API; 0 means none."""

    peak: int
    pods: int
    gap: float
    life: float
    slow: float
    terminating: float
    period: float
    delivery: tuple[float, bool]  # at most, but for late ones
    lost: float
    blind: float  # share of pods that are bound although the kubelet refuses them

    @staticmethod
    def drawn(dice: Random) -> "Pace":
        """That of one sequence."""
        peak, gap = dice.choice(PEAKS), dice.choice((3.0, 4.0, 6.0, 9.0, 12.0))
        return Pace(
            peak=peak,
            pods=min(105, max(34, int(peak * dice.uniform(1.5, 3)))),
            gap=gap,
            life=peak * gap * dice.uniform(0.9, 1.7),
            slow=dice.choice((0.0, 0.0, 0.3, 1.0, 2.0, 3.0)),
            terminating=dice.choice((0.0, 0.0, 0.0, 5.0, 30.0)),
            period=dice.choices([*PERIODS], [*PERIODS.values()])[0],
            delivery=dice.choice(((1.0, False), (1.0, False), (12.0, False), (15.0, True), (15.0, True))),
            lost=dice.choice((0.0, 0.0, 0.05, 0.1, 0.15)),
            blind=dice.choice((0.0, 0.0, 0.0, 0.02, 0.1, 0.3)),
        )


def drawn_sequence(seed: int, machines: Sequence[Case]) -> Case:
    """The sequence of this seed, on one of these sequences' machines."""
    dice = Random(seed)
    recorded = dice.choice(machines)
    node = drawn_node(dice, recorded)
    reserved = recorded.get("reserved_set", "") if node["cpu_manager"] == "static" else ""
    exporter, published = dice.choice(("rte", "rte", "nfd")), dice.random() < 1 / 2
    method = dice.choice(("all", "with-exclusive-resources", "with-exclusive-resources"))
    first = first_topology(node, reserved, exporter, published=published, method=method)
    case: dict[str, Any] = {"id": f"drawn-{seed}", "exporter": exporter, "published": published, "node": node}
    case |= {"reserved_set": reserved, "specs": [], "events": []}
    case["events"] += [{"t": 0.0, "ev": "scan", "n": 0, "nrt": first}, {"t": 0.0, "ev": "delivered", "n": 0}]
    has_fingerprint = exporter == "rte" or dice.random() < 4 / 5
    reacts = exporter == "rte" and dice.random() < REACTING
    _Life(dice, Recorded(case), Pace.drawn(dice), has_fingerprint=has_fingerprint, reacts=reacts).run()
    return case


@dataclass
class _Life:
    dice: Random
    recorded: Recorded
    pace: Pace
    has_fingerprint: bool
    reacts: bool
    requests: list[PodRequest] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)  # of specs, by their text
    coming: list[tuple[float, int, str, tuple[Any, ...]]] = field(default_factory=list)
    bound: dict[str, int] = field(default_factory=dict)  # pods on their way, with their specs
    hidden: dict[str, None] = field(default_factory=dict)  # pods of which something has not been shown
    last: dict[str, float] = field(default_factory=dict)  # when something happened last that has an order
    latest: object = None  # what was published last
    came: int = 0
    scans: int = 1
    asked: int = 0
    reacting: bool = False  # is a scan planned because of a change?
    planned: int = 0
    now: float = 0.0

    def __post_init__(self) -> None:
        node = self.recorded.case["node"]
        usual = max(1.0, len(node["cpus"]) / self.pace.peak * self.dice.uniform(0.3, 0.9))
        self.shapes = Shapes(self.dice, node, usual)
        self.templates = [self.shapes.template() for _ in range(self.dice.randint(10, 18))]
        self.state = KubeletState.empty(self.recorded.node)

    def run(self) -> None:
        """Until enough pods have come."""
        self._plan(1.0, "arrival")
        self._plan(1.0 + self.pace.period * self.dice.random(), "scan")
        while self.came < self.pace.pods and self.planned - 2 * self.scans < MOST_PLANNED:
            self.now, _, what, given = heapq.heappop(self.coming)
            getattr(self, f"_{what}")(*given)
        for uid in [*self.hidden]:
            self._seen(uid)

    def _plan(self, at: float, what: str, *given: Any) -> None:
        self.planned += 1
        heapq.heappush(self.coming, (round(at, 2), self.planned, what, given))

    def _note(self, what: str, **more: Any) -> None:
        self.recorded.case["events"].append({"t": self.now, "ev": what, **more})

    def _after(self, what: str, at: float) -> float:
        """This time, or just after the last event of the kind."""
        self.last[what] = max(at, self.last.get(what, 0.0) + NEXT)
        return self.last[what]

    def _lag(self) -> float:
        return min(5.0, self.dice.expovariate(1 / self.pace.slow)) if self.pace.slow else 0.0

    def _number(self, spec: dict[str, Any]) -> int:
        key = json.dumps(spec, sort_keys=True)
        if key not in self.numbers:
            self.numbers[key] = len(self.requests)
            self.requests.append(parse_pod(pod_object("pod", spec, 0.0)).request)
            self.recorded.case["specs"].append(spec)
        return self.numbers[key]

    def _ask(self, number: int) -> None:
        if self.bound or self.asked >= MOST_ASKED:
            return
        self.asked += 1
        verdict = admit_pod(self.state, "question", self.requests[number])
        admits = isinstance(verdict, Admitted)
        reason = {} if isinstance(verdict, Admitted) else {"reason": verdict.refusal.reason}
        self._note("ask", pod=number, kubelet_admits=admits, **reason)

    def _ask_about_any(self) -> None:
        free = available(self.recorded, self.state, self.recorded.last_named)
        for _ in range(self.dice.choice((0, 1, 2))):
            self._ask(self._number(self.shapes.question(free)))

    def _fits(self, number: int) -> bool:
        state = self.state
        for uid, coming in self.bound.items():
            state = admit_pod(state, uid, self.requests[coming]).state
        return isinstance(admit_pod(state, "question", self.requests[number]), Admitted)

    def _arrival(self) -> None:
        filling = self.came < 0.6 * self.pace.peak
        self._plan(self.now + NEXT + self.dice.expovariate(1 / self.pace.gap) * (0.4 if filling else 1), "arrival")
        number, fits = 0, False
        for _ in range(TRIES):
            number = self._number(self.dice.choice(self.templates))
            fits = self._fits(number)
            if fits:
                break
        if self.dice.random() < 1 / 2:
            self._ask_about_any()
        if self.dice.random() < 4 / 5:
            self._ask(number)
        if not fits and self.dice.random() >= self.pace.blind:
            return
        self.came += 1
        uid = f"p{self.came}"
        if not self.pace.slow or (not self.bound and self.dice.random() < 1 / 5):
            self.last["reach"] = self.now
            self._reach(uid, number)
            return
        self.bound[uid] = number
        self._note("bind", uid=uid, pod=number)
        self._plan(self._after("reach", self.now + self._lag()), "reach", uid, number)

    def _reach(self, uid: str, number: int) -> None:
        self.bound.pop(uid, None)
        verdict = admit_pod(self.state, uid, self.requests[number])
        admitted = isinstance(verdict, Admitted)
        self.state = verdict.state
        told: dict[str, Any] = (
            {"held": held(self.state.pods[uid].grant)}
            if isinstance(verdict, Admitted)
            else {"reason": verdict.refusal.reason}
        )
        shown = self._shown("pod", uid, pod=number, admitted=admitted, **told)
        if not admitted:
            return
        self._react()
        end = max(shown + 2 * NEXT, self.now + self.dice.expovariate(1 / self.pace.life))
        if self.pace.terminating:
            self._plan(max(shown + NEXT, end - self.dice.uniform(1, self.pace.terminating)), "terminating", uid)
        self._plan(end + NEXT, "end", uid)

    def _shown(self, what: str, uid: str, **more: Any) -> float:
        """Note what happened to a pod, and say when it shows in the API."""
        unseen = bool(self.pace.slow) and self.dice.random() < 3 / 5
        self._note(what, uid=uid, **more, **({"unseen": True} if unseen else {}))
        if not unseen:
            return self.now
        self.hidden[uid] = None
        at = self.now + NEXT + self._lag()
        self._plan(at, "seen", uid)
        return at

    def _seen(self, uid: str) -> None:
        del self.hidden[uid]
        self._note("seen", uid=uid)

    def _terminating(self, uid: str) -> None:
        self._note("terminating", uid=uid)

    def _end(self, uid: str) -> None:
        self.state = self.state.without(uid)
        self._shown("end", uid)
        self._react()
        if self.dice.random() < 1 / 3:
            self._ask_about_any()

    def _react(self) -> None:
        if self.reacts and not self.reacting and self.dice.random() < OF_CHANGES:
            self.reacting = True
            self._plan(self.now + self.dice.uniform(1, 2), "scan_of_change")

    def _scan(self) -> None:
        self._plan(self.now + self.pace.period * self.dice.uniform(0.97, 1.03), "scan")
        self._publish()

    def _scan_of_change(self) -> None:
        self.reacting = False
        self._publish()

    def _publish(self) -> None:
        number, seen = self.scans, self._seen_by_exporter()
        self.scans += 1
        self._note("scan", n=number, nrt=seen)
        if seen == self.latest or self.dice.random() < self.pace.lost:
            return
        self.latest = seen
        most, late = self.pace.delivery
        lag = self.dice.uniform(20, 120) if late and self.dice.random() < LATE else self.dice.uniform(NEXT, most)
        self._plan(self._after("delivered", self.now + lag), "delivered", number)

    def _delivered(self, number: int) -> None:
        self._note("delivered", n=number)

    def _seen_by_exporter(self) -> dict[str, Any]:
        free = available(self.recorded, self.state, self.recorded.last_named)
        names = {name: None for zone in self.recorded.zones for name, amount in zone.items() if amount}
        seen: dict[str, Any] = {"available": {name: [zone.get(name) for zone in free] for name in names}}
        # That of NFD is absent where no pod is.
        if self.has_fingerprint and (self.recorded.case["exporter"] == "rte" or self.state.pods):
            pods = self.state.pods.items()
            named = (("default", uid) for uid, pod in pods if self.recorded.speaks_of(self.state, pod.grant))
            seen["fingerprint"] = fingerprint(named)
        return seen


def held(grant: Grant) -> dict[str, Any]:
    """Return what each container holds, in the format of the recorded sequences."""
    found: dict[str, Any] = {}
    for each in grant.containers:
        memory = [{"numa": members(block.mask), "size": block.amount, "type": block.resource} for block in each.memory]
        devices = {name: sorted(ids) for name, ids in each.devices.items() if ids}
        parts = {"cpus": str(each.cpus), "memory": memory, "devices": devices}
        if given := {name: part for name, part in parts.items() if part}:
            found[each.name] = given
    return found
