"""
Which pods a node's topology does not show yet, and why: one state machine a node, one state a pod.

Theory. Exporters publish seldom, and what they saw may be older than a pod's start, whatever arrives first. What a topology calls available
is therefore reduced by pods that it cannot show yet; a pod that it does show must not be subtracted again. Evidence, best first: the
*fingerprint* (the pods that the exporter saw), then that a topology was published after the pod had started, then time.

    counted ─┬─not started──▶ NOT_STARTED ──its kubelet admits it──▶ STARTED ──fingerprint of other pods──▶ MISSED
             │                    │  └─(a topology came meanwhile)─▶ MAYBE_SHOWN                             │
             │                    │                                    │        │                           │
             │                    └──fingerprint with it──▶ reported ◀─┴────────┴──the next topology────────┘
             │                                                 ▲  (or, of MAYBE_SHOWN and FOUND_*, after RECENT seconds)
             └─ran already──▶ FOUND_HIDDEN ◀─judged by age─▶ FOUND_SHOWN

``reported`` pods are not kept. All states but ``FOUND_SHOWN`` are *hidden*: the topology is taken not to show the pod. ``FOUND_*`` are pods
that ran when they were first seen, after a restart or a missed event: whether the topology is older than they are is unknown. A pod that
waits in ``STARTED`` for a topology of a dead exporter stays hidden for ever, which is right: nothing shows it. A fingerprint is of names:
of a pod whose name another one had before it may be the other's, until no topology from that time can come any more (``MAYBE_SHOWN``).

Example: pods a and b have started, c has not; a topology comes with the fingerprint of {a}. b and c stay hidden, a is reported.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from enum import Enum
from math import inf
from typing import Final

from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.engine.cache.shown_pods.pod_sets import Reading
from koord_numa.wire.node.fingerprint import comparable, fingerprint

ALL_PODS: Final = ("", "all")
"""Methods of fingerprints that cover every pod of the node; others leave pods out that are listed nowhere."""
RECENT: Final = 180.0
"""Seconds after which every exporter has seen a pod that runs: three times the usual interval of a minute."""
FEW: Final = 8
"""So many of the newest pods at most are left out in turn to explain a fingerprint, where no more are recent."""


class Report(Enum):
    """What is known of a pod that the topology may not show."""

    NOT_STARTED = "not started"
    STARTED = "started"
    MISSED = "missed"
    MAYBE_SHOWN = "maybe shown"
    FOUND_HIDDEN = "found hidden"
    FOUND_SHOWN = "found shown"


_FOUND: Final = (Report.FOUND_HIDDEN, Report.FOUND_SHOWN)


class UnreportedPods:
    """One node. ``pods`` are the counted pods of the node by uid, kept by the caller. Times are monotonic seconds."""

    def __init__(self, pods: Mapping[str, Pod]) -> None:
        self._pods = pods
        self._reports: dict[str, Report] = {}
        self._since: dict[str, float] = {}  # of MAYBE_SHOWN and FOUND_*
        self.earliest = inf  # no time is earlier at which it became unknown whether a pod is shown
        self._met: set[str] = set()  # NOT_STARTED pods that were counted when a topology came
        self._hidden: set[str] = set()
        self.unjudged = False  # are there FOUND_* pods that were not held against the topology?

    @property
    def hidden(self) -> set[str]:
        """Uids of the pods that the topology is taken not to show. Not to be changed."""
        return self._hidden

    @property
    def waits_for_time(self) -> bool:
        """May a pod become reported because time passes?"""
        return bool(self._since)

    def report(self, uid: str) -> Report | None:
        """The state of a pod; ``None`` when the topology shows it, or it is not counted."""
        return self._reports.get(uid)

    def add(self, pod: Pod, now: float) -> None:
        """A pod is counted that was not before."""
        uid = pod.key.uid
        if pod.started:
            self._set(uid, Report.FOUND_HIDDEN, now)
            self.unjudged = True
        else:
            self._reports[uid] = Report.NOT_STARTED  # of a pod that is new nothing else is known
            self._hidden.add(uid)

    def start(
        self,
        pod: Pod,
        topology: NodeResourceTopology | None,
        now: float,
        had_namesake: Callable[[Pod], bool],
        read: Callable[[], Reading | None] = lambda: None,
    ) -> bool:
        """
        A pod has started, as its status says now. Returns whether other pods are hidden than before.

        ``had_namesake``: has a pod of the same name left the node, which a late topology may still show? ``read`` tells which pods the
        topology shows of a node whose kubelet chooses.
        """
        uid = pod.key.uid
        # Told twice, by status updates in a row: only the first counts.
        if self._reports.get(uid) is not Report.NOT_STARTED:
            return False
        reading = read() if uid in self._met else None
        if reading is not None and reading.tells:
            # The topology may be ahead of more than this status: of others that it shows, and of departures.
            if reading.shown is not None and uid in reading.counted and uid not in reading.shown:
                self._set(uid, Report.STARTED)
            elif reading.shown is None or uid not in reading.shown - reading.namesakes or had_namesake(pod):
                self._set(uid, Report.MAYBE_SHOWN, now)
            else:
                self.discard(uid)
                return True
        elif _tells(topology):
            # Either order of events: the fingerprint may have come before the status of the pods that it shows.
            if not self._shows_all_but(topology, self._hidden - {uid}) and not self._shows_all_but(topology, ()):
                self._set(uid, Report.STARTED)
            # A fingerprint is of names: that of a topology from before the bind is of an earlier pod with the name of this one.
            elif uid not in self._met or had_namesake(pod):
                self._set(uid, Report.MAYBE_SHOWN, now)
            else:
                self.discard(uid)
                return True
        # A topology came between the bind and the start, which may or may not be newer than the start.
        elif uid in self._met:
            self._set(uid, Report.MAYBE_SHOWN, now)
        else:
            self._set(uid, Report.STARTED)
        return False

    def discard(self, uid: str) -> None:
        """The pod is reported, or not counted any more."""
        # Whatever is known of a pod, it has a report.
        if self._reports.pop(uid, None) is None:
            return
        self._since.pop(uid, None)
        self._met.discard(uid)
        self._hidden.discard(uid)

    def topology_changed(
        self, topology: NodeResourceTopology | None, now: float, *, is_first: bool, reading: Reading | None = None
    ) -> None:
        """
        Another topology was published; the first one may be older than pods that were found running.

        ``reading`` tells which pods it shows of a node whose kubelet chooses.
        """
        if reading is not None:
            self._read(reading, now)
            return
        # The first topology after a restart may be of any age; pods that were found running are judged by their age.
        if is_first and any(report in _FOUND for report in self._reports.values()):
            self.judge(topology, now)
            return
        waiting = {uid for uid in self._hidden if self._waits(uid)}
        # The newest first: they are missing first.
        started = sorted(self._hidden - waiting, key=self._age, reverse=True)
        hidden = self._explained(topology, waiting, started) if _tells(topology) else waiting
        if hidden is None:
            # A fingerprint that nothing explains: pods that it should have shown are missed once, and shown after that.
            hidden = waiting.union(uid for uid in started if self._reports[uid] is not Report.MISSED)
            missed = hidden - waiting
        else:
            missed = set()
        for uid in list(self._reports):
            if uid not in hidden:
                self.discard(uid)
            elif uid in missed:
                self._set(uid, Report.MISSED)
            elif uid not in waiting:
                self._set(uid, Report.STARTED)
            else:
                self._met.add(uid)

    def judge_again(self, reading: Reading, now: float) -> bool:
        """
        Judge started pods again by the last topology, as other pods started, left or were rejected since it came.

        Returns whether other pods are hidden than before.
        """
        before = set(self._hidden)
        met = set(self._met)
        self._read(reading, now)
        self._met &= met  # a pod that was bound since then has met no topology
        return self._hidden != before

    def _read(self, reading: Reading, now: float) -> None:
        """What is not known to be shown stays hidden until no scan can be under way any more that is older than the pod."""
        for uid in list(self._reports):
            if self._waits(uid):
                self._met.add(uid)
            elif uid not in reading.counted or uid in (reading.shown or frozenset()) - reading.namesakes:
                self.discard(uid)
            elif reading.shown is not None and uid not in reading.namesakes:
                self._set(uid, Report.STARTED)
            # What ran for long when it was found an older scan has shown already.
            elif self._reports[uid] not in (Report.MAYBE_SHOWN, Report.FOUND_SHOWN):
                self._set(uid, Report.MAYBE_SHOWN, self._since.get(uid, now))

    def judge(self, topology: NodeResourceTopology | None, now: float, reading: Reading | None = None) -> bool:
        """
        Hold pods that were found running against a topology that may be older. Returns whether other pods are hidden than before.

        A fingerprint tells exactly, if what is missing are the newest. Otherwise those are taken to be hidden that started less than
        ``RECENT`` before the last start on the node: what ran for longer an exporter has seen; a kubelet tells the time of the start with
        its first word about a pod. All times are of one machine's clock.
        """
        self.unjudged = False
        before = set(self._hidden)
        if reading is not None and reading.shown is not None:
            self._read(reading, now)
            return self._hidden != before
        found = [uid for uid, report in self._reports.items() if report in _FOUND]
        recent, others = self._recent(found), self._hidden.difference(found)
        if _tells(topology):
            newest = sorted(found, key=lambda uid: (self._pods[uid].started_at, *self._age(uid)), reverse=True)
            # At least ``FEW`` are tried, however few started lately: clocks and start times may be off.
            most = min(len(newest), max(FEW, len(recent)))
            hidden = self._explained(topology, others, newest[:most])
            if hidden is not None:
                for uid in list(self._reports):
                    if uid not in hidden:
                        self.discard(uid)
                    elif self._reports[uid] in _FOUND:
                        self._set(uid, Report.STARTED)
                return self._hidden != before
        for uid in found:
            # The time at which they were found is kept, or each judgement would start the wait again.
            since = self._since.get(uid, now)
            self._set(uid, Report.FOUND_HIDDEN if uid in recent else Report.FOUND_SHOWN, since)
        return self._hidden != before

    def expire(self, before: float) -> bool:
        """Pods whose state is unknown since before this time are taken to be shown. Returns whether other pods are hidden now."""
        if before < self.earliest:
            return False
        old = [uid for uid, since in self._since.items() if since <= before]
        was_hidden = any(uid in self._hidden for uid in old)
        for uid in old:
            self.discard(uid)
        self.earliest = min(self._since.values(), default=inf)
        return was_hidden

    def speaks_of_others(self, topology: NodeResourceTopology | None) -> bool:
        """
        Is the fingerprint published with the topology that of other pods than those known to be there?

        Hidden pods may be missing from it. Without a fingerprint that can be compared nothing is held against it.
        """
        return (
            _tells(topology)
            and not self._shows_all_but(topology, ())
            and not self._shows_all_but(topology, self._hidden)
        )

    def _waits(self, uid: str) -> bool:
        """Has the pod not started yet, by the newest that was told of it? What its object says may be older, as after it was read back."""
        return self._reports[uid] is Report.NOT_STARTED

    def _set(self, uid: str, report: Report, since: float | None = None) -> None:
        self._reports[uid] = report
        if since is None:
            self._since.pop(uid, None)
        else:
            self._since[uid] = since
            self.earliest = min(self.earliest, since)
        if report is Report.FOUND_SHOWN:
            self._hidden.discard(uid)
        else:
            self._hidden.add(uid)

    def _explained(self, topology: NodeResourceTopology | None, always: set[str], newest: list[str]) -> set[str] | None:
        """
        The hidden pods that explain a fingerprint: none, or ``always`` and some of ``newest``. ``None`` when no choice does.

        Pods start about in the order of their creation, so the newest are missing first.
        """
        # No hidden pods first, the usual case; then those not started, with ever more of the newest.
        for hidden in (set[str](), *(always.union(newest[:count]) for count in range(len(newest) + 1))):
            if self._shows_all_but(topology, hidden):
                return hidden
        return None

    def _shows_all_but(self, topology: NodeResourceTopology | None, hidden: Container[str]) -> bool:
        return topology is not None and topology.fingerprint == fingerprint(self._names(hidden))

    def _names(self, hidden: Container[str]) -> Iterator[tuple[str, str]]:
        return ((pod.key.namespace, pod.key.name) for uid, pod in self._pods.items() if uid not in hidden)

    def _recent(self, found: list[str]) -> set[str]:
        last = max((pod.started_at for pod in self._pods.values()), default=0.0)
        starts = {uid: self._pods[uid].started_at for uid in found}
        # A start of 0 is unknown, and an unknown start is not recent.
        return {uid for uid, start in starts.items() if start > last - RECENT and start}

    def _age(self, uid: str) -> tuple[float, str]:
        pod = self._pods[uid]
        return pod.created, str(pod.key)


def _tells(topology: NodeResourceTopology | None) -> bool:
    """Does the topology carry a fingerprint that can be compared?"""
    return topology is not None and comparable(topology.fingerprint) and topology.fingerprint_method in ALL_PODS
