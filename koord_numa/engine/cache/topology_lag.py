"""
State machine of the pods that a node's topology does not show yet.

Exporters publish periodically, and their data may be older than a pod's start. Available amounts are therefore reduced by the *hidden*
pods: pods that the topology does not show yet. Pods that it shows must not be subtracted again. Evidence, the best first: the fingerprint
(the pods that the exporter saw); a topology published after the start of the pod; time.

Example: pods a and b have started, c has not. After a topology with the fingerprint of {a}, b and c stay hidden, and a is reported.
"""

from collections.abc import Callable, Container, Mapping
from enum import Enum
from math import inf
from typing import Final

from koord_numa.core.fingerprint import comparable, fingerprint
from koord_numa.core.kubelet import Reading
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod

ALL_PODS: Final = ("", "all")
"""Methods of fingerprints that cover every pod of the node. Other methods omit pods that are listed nowhere."""
RECENT: Final = 180.0
"""Seconds after which every exporter has seen a running pod: three times the usual interval of a minute."""
FEW: Final = 8
"""Minimum number of the newest pods that are omitted in turn to explain a fingerprint, even if fewer are recent."""


class Report(Enum):
    """
    State of a pod that the topology may not show. All states but ``FOUND_SHOWN`` are hidden.

        counted ─┬─not started──▶ NOT_STARTED ──kubelet admits it──▶ STARTED ──fingerprint of other pods──▶ MISSED
                 │                    │  └─(a topology arrived before)─▶ MAYBE_SHOWN                         │
                 │                    │                                   │       │                         │
                 │                    └──fingerprint with it──▶ reported ◀┴───────┴──the next topology──────┘
                 │                                                 ▲  (MAYBE_SHOWN and FOUND_*: or after RECENT seconds)
                 └─already running──▶ FOUND_HIDDEN ◀─judged by age─▶ FOUND_SHOWN

    ``reported`` pods have no state. ``FOUND_*`` pods ran when they were first observed, after a restart or a missed event: the topology may
    be older than these pods. A ``STARTED`` pod of a node whose exporter has stopped stays hidden, because no topology shows it.
    Fingerprints use names. If an earlier pod had the same name, the topology may show that pod, until no topology from that time can
    arrive any more (``MAYBE_SHOWN``).
    """

    NOT_STARTED = "not started"
    STARTED = "started"
    MISSED = "missed"
    MAYBE_SHOWN = "maybe shown"
    FOUND_HIDDEN = "found hidden"
    FOUND_SHOWN = "found shown"


_FOUND: Final = (Report.FOUND_HIDDEN, Report.FOUND_SHOWN)


class UnreportedPods:
    """Hidden pods of one node. ``pods`` are the counted pods by UID, updated by the caller. Times are monotonic seconds."""

    def __init__(self, pods: Mapping[str, Pod]) -> None:
        self._pods = pods
        self._reports: dict[str, Report] = {}
        self._since: dict[str, float] = {}  # of MAYBE_SHOWN and FOUND_*
        self.earliest = inf  # lower bound of the times in _since
        self._met: set[str] = set()  # NOT_STARTED pods that were counted when a topology arrived
        self._hidden: set[str] = set()
        self.unjudged = False  # whether FOUND_* pods were not compared with the topology yet

    @property
    def hidden(self) -> set[str]:
        """UIDs of the hidden pods. Callers must not change the set."""
        return self._hidden

    @property
    def waits_for_time(self) -> bool:
        """True if time alone may make a pod reported."""
        return bool(self._since)

    def report(self, uid: str) -> Report | None:
        """Return the state of a pod; ``None`` if the topology shows the pod, or the pod is not counted."""
        return self._reports.get(uid)

    def add(self, pod: Pod, now: float) -> None:
        """Add a pod that was not counted before."""
        uid = pod.key.uid
        if pod.started:
            self._set(uid, Report.FOUND_HIDDEN, now)
            self.unjudged = True
        else:
            self._reports[uid] = Report.NOT_STARTED  # other fields have no entries of a new pod
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
        Process the start of a pod. Return whether the set of hidden pods changed.

        ``had_namesake`` returns whether a pod of the same name has left the node that a late topology may still show. ``read`` returns the
        reading of the topology on a kubelet-owned node.
        """
        uid = pod.key.uid
        # Further status updates of a started pod change nothing.
        if self._reports.get(uid) is not Report.NOT_STARTED:
            return False
        reading = read() if uid in self._met else None
        if reading is not None and reading.tells:
            # The topology may also be newer than the status of other pods, and than departures.
            if reading.shown is not None and uid in reading.counted and uid not in reading.shown:
                self._set(uid, Report.STARTED)
            elif reading.shown is None or uid not in reading.shown - reading.namesakes or had_namesake(pod):
                self._set(uid, Report.MAYBE_SHOWN, now)
            else:
                self.discard(uid)
                return True
        elif _tells(topology):
            # The fingerprint may have arrived before the status of the pods that it shows.
            if not self._shows_all_but(topology, self._hidden - {uid}) and not self._shows_all_but(topology, ()):
                self._set(uid, Report.STARTED)
            # Fingerprints use names: a topology from before the bind shows an earlier pod of the same name.
            elif uid not in self._met or had_namesake(pod):
                self._set(uid, Report.MAYBE_SHOWN, now)
            else:
                self.discard(uid)
                return True
        # A topology arrived between the bind and the observed start. It may be newer than the start itself.
        elif uid in self._met:
            self._set(uid, Report.MAYBE_SHOWN, now)
        else:
            self._set(uid, Report.STARTED)
        return False

    def discard(self, uid: str) -> None:
        """Remove a pod that is reported or not counted any more."""
        # A pod without a report has no other entries.
        if self._reports.pop(uid, None) is None:
            return
        self._since.pop(uid, None)
        self._met.discard(uid)
        self._hidden.discard(uid)

    def topology_changed(
        self, topology: NodeResourceTopology | None, now: float, *, is_first: bool, reading: Reading | None = None
    ) -> None:
        """
        Process a new topology. The first topology may be older than pods that were found running.

        ``reading`` is its reading on a kubelet-owned node.
        """
        if reading is not None:
            self._read(reading, now)
            return
        # The first topology after a restart may have any age, so pods that were found running are judged by their age.
        if is_first and any(report in _FOUND for report in self._reports.values()):
            self.judge(topology, now)
            return
        waiting = {uid for uid in self._hidden if self._waits(uid)}
        # The newest first: they are most likely missing.
        started = sorted(self._hidden - waiting, key=self._age, reverse=True)
        hidden = self._explained(topology, waiting, started) if _tells(topology) else waiting
        if hidden is None:
            # No set of pods explains the fingerprint: started pods become MISSED, and pods that were MISSED count as reported.
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
        Judge started pods again by the last topology, after other pods have started, left or been rejected.

        Return whether the set of hidden pods changed.
        """
        before = set(self._hidden)
        met = set(self._met)
        self._read(reading, now)
        self._met &= met  # no topology arrived after the bind of a newer pod
        return self._hidden != before

    def _read(self, reading: Reading, now: float) -> None:
        """
        Update the states by a reading.

        A pod that may be shown or not stays hidden until no scan that began before its start can be published any more.
        """
        for uid in list(self._reports):
            if self._waits(uid):
                self._met.add(uid)
            elif uid not in reading.counted or uid in (reading.shown or frozenset()) - reading.namesakes:
                self.discard(uid)
            elif reading.shown is not None and uid not in reading.namesakes:
                self._set(uid, Report.STARTED)
            # An earlier scan has shown a pod that had run for long when it was found (FOUND_SHOWN).
            elif self._reports[uid] not in (Report.MAYBE_SHOWN, Report.FOUND_SHOWN):
                self._set(uid, Report.MAYBE_SHOWN, self._since.get(uid, now))

    def judge(self, topology: NodeResourceTopology | None, now: float, reading: Reading | None = None) -> bool:
        """
        Judge which pods that were found running a topology shows. Return whether the set of hidden pods changed.

        A fingerprint gives an exact result if the missing pods are the newest. Otherwise pods count as hidden that started less than
        ``RECENT`` seconds before the last start on the node: exporters have seen all earlier pods. The kubelet reports the start time with
        its first status of a pod, so that all times are from one clock.
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
            # At least ``FEW`` are tried, because clocks and start times may be wrong.
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
            # The time at which the pod was found is kept: otherwise every judgment would restart the wait.
            since = self._since.get(uid, now)
            self._set(uid, Report.FOUND_HIDDEN if uid in recent else Report.FOUND_SHOWN, since)
        return self._hidden != before

    def expire(self, before: float) -> bool:
        """Treat pods as shown whose state is unknown since this time or earlier. Return whether the set of hidden pods changed."""
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
        Return whether the fingerprint matches neither all counted pods nor the counted pods without the hidden pods.

        Return false without a usable fingerprint.
        """
        return (
            _tells(topology)
            and not self._shows_all_but(topology, ())
            and not self._shows_all_but(topology, self._hidden)
        )

    def _waits(self, uid: str) -> bool:
        """Return whether the pod has not started by its newest status. Its object may be older, for example after a read."""
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
        Return the hidden pods that explain a fingerprint: no pods, or ``always`` and a prefix of ``newest``; ``None`` if no set does.

        Pods start about in the order of their creation, so the newest pods are most likely missing.
        """
        # First no hidden pods, the usual case; then the pods that have not started, with an increasing number of the newest.
        for hidden in (set[str](), *(always.union(newest[:count]) for count in range(len(newest) + 1))):
            if self._shows_all_but(topology, hidden):
                return hidden
        return None

    def _shows_all_but(self, topology: NodeResourceTopology | None, hidden: Container[str]) -> bool:
        return topology is not None and topology.fingerprint == fingerprint(
            (pod.key.namespace, pod.key.name) for uid, pod in self._pods.items() if uid not in hidden
        )

    def _recent(self, found: list[str]) -> set[str]:
        last = max((pod.started_at for pod in self._pods.values()), default=0.0)
        starts = {uid: self._pods[uid].started_at for uid in found}
        # 0 is an unknown start and does not count as recent.
        return {uid for uid, start in starts.items() if start > last - RECENT and start}

    def _age(self, uid: str) -> tuple[float, str]:
        pod = self._pods[uid]
        return pod.created, str(pod.key)


def _tells(topology: NodeResourceTopology | None) -> bool:
    """Return whether the topology has a fingerprint of a known version that covers all pods."""
    return topology is not None and comparable(topology.fingerprint) and topology.fingerprint_method in ALL_PODS
