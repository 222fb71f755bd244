"""
One kubelet-owned node with pods coming and going, seen through late topologies: what the operator's cache would have answered.

``load`` turns a recorded sequence into API objects in the order in which they reach a scheduler. ``judge`` feeds them to the engine's own
cache through ``wire/`` and asks ``core.scheduling.evaluate``, as a scheduling cycle does.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.scheduling.filters import ScoredPlacement, evaluate
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.engine.cache.cache import Cache, ListedChanges
from koord_numa.ports import DELETED
from koord_numa.wire.nodes import parse_node
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.topologies import parse_topology
from tests.conformance.vectors import Case

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
NODE: Final = "n"
LONG: Final = "churn"
"""The class of sequences that were not made for one hazard."""


@dataclass
class Tally:
    """Answers of one class of sequences."""

    asked: int = 0
    admitted: int = 0
    wrong_yes: Counter[str] = field(default_factory=Counter)  # by the kubelet's reason
    wrong_no: Counter[str] = field(default_factory=Counter)  # by our reason and detail
    explored: Counter[str] = field(default_factory=Counter)  # refused explorations, by option
    named: list[str] = field(default_factory=list)  # where each wrong yes happened
    named_no: list[str] = field(default_factory=list)
    most_explored: int = 0  # refused explorations of one option on one node

    def add(self, other: "Tally") -> None:
        """Count another sequence's answers."""
        self.asked += other.asked
        self.admitted += other.admitted
        self.wrong_yes += other.wrong_yes
        self.wrong_no += other.wrong_no
        self.explored += other.explored
        self.most_explored = max(self.most_explored, *other.explored.values(), 0)
        self.named += other.named
        self.named_no += other.named_no

    def __str__(self) -> str:
        yes, no = self.wrong_yes.total(), self.wrong_no.total()
        per_thousand = 1000 * yes / max(1, self.asked)
        share = no / max(1, self.admitted)
        return (
            f"{self.asked} questions: wrong yes {yes} ({per_thousand:.2f} in 1,000), "
            f"wrong no {no} of {self.admitted} ({share:.1%}), "
            f"explorations refused {self.explored.total()}, of one option on one node {self.most_explored}"
        )


def judge(case: Case, restart: int | None = None) -> Tally:
    """
    Replay one sequence and answer its questions. ``restart`` is the index of the event before which another scheduler takes over, which
    knows what the API server has; only later questions count then.
    """
    replay = Replay(case)
    tally = replay.run(restart)
    return tally if restart is None else replay.restarted(restart).run(begin=restart)


def offered_at(case: Case, index: int) -> object:
    """Return the scheduler's knowledge of the node at the question of this event."""
    replay = Replay(case)
    replay.run(index)
    return replay.offered(index)


def middle(case: Case) -> int:
    """The event in the middle of a sequence."""
    return len(case["events"]) // 2


def topology_object(case: Case, scan: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """The NodeResourceTopology of a scan: that of scan 0 with the amounts and the fingerprint of this one."""
    zones = [{**zone, "resources": [dict(row) for row in zone["resources"]]} for zone in first["zones"]]
    attributes = [dict(one) for one in first.get("attributes", ())]
    annotations = dict(first.get("annotations", {}))
    if "zones" not in scan:
        for resource, amounts in scan["available"].items():
            for zone, amount in zip(zones, amounts, strict=True):
                for row in zone["resources"]:
                    if row["name"] == resource:
                        row["available"] = str(amount)
        attributes = [one for one in attributes if one["name"] != "nodeTopologyPodsFingerprint"]
        if "fingerprint" in scan:
            attributes.append({"name": "nodeTopologyPodsFingerprint", "value": scan["fingerprint"]})
            if case["exporter"] == "rte":
                annotations["topology.node.k8s.io/fingerprint"] = scan["fingerprint"]
        elif case["exporter"] == "rte":
            annotations.pop("topology.node.k8s.io/fingerprint", None)
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": NODE, "annotations": annotations},
        "zones": zones,
        "attributes": attributes,
        **({"topologyPolicies": first["topologyPolicies"]} if "topologyPolicies" in first else {}),
    }


def node_object(case: Case) -> dict[str, Any]:
    """The Node as a scheduler sees it."""
    return {
        "metadata": {"name": NODE, "uid": "uid-n", "labels": case["node"]["labels"]},
        "status": {"allocatable": case["node"]["allocatable"]},
    }


def pod_object(uid: str, spec: Mapping[str, Any], t: float) -> dict[str, Any]:
    """A pod of a controller that waits for a node."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}
    metadata = {"name": uid, "namespace": "default", "uid": uid, "creationTimestamp": _time(t)}
    return {
        "metadata": {**metadata, "ownerReferences": [owner]},
        "spec": {**spec, "schedulerName": "koord-numa"},
        "status": {"phase": "Pending"},
    }


def _time(t: float) -> str:
    return datetime.fromtimestamp(EPOCH + t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Replay:
    """One sequence in progress, as one scheduler sees it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.tally = Tally()
        self.now = 0.0
        self.scans: dict[int, Mapping[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.pending: dict[str, str] = {}  # uid -> what ``seen`` will show
        self.profile = Profile()
        self.listed: dict[str, Pod] = {}  # what the API server has of pods, by uid
        self.topology: dict[str, Any] | None = None
        self.cache = self._new_cache()

    def run(self, until: int | None = None, begin: int = 0) -> Tally:
        for number in range(begin, len(self.case["events"][:until])):
            self.step(number)
        return self.tally

    def restarted(self, number: int) -> "Replay":
        """The same moment, before this event, as a scheduler sees it that starts now."""
        other = copy(self)
        other.now, other.tally = float(self.case["events"][number]["t"]), Tally()
        other.scans, other.pods, other.pending = dict(self.scans), deepcopy(self.pods), dict(self.pending)
        other.listed = dict(self.listed)
        other.cache = other._new_cache()
        return other

    def step(self, number: int) -> None:
        """The next event."""
        event = self.case["events"][number]
        self.now = float(event["t"])
        getattr(self, f"_{event['ev']}")(event, number)

    def _new_cache(self) -> Cache:
        """The cache of a scheduler that starts now, after its first lists: in the order of names, as an API server has them."""
        cache = Cache(lambda *_: None, clock=lambda: self.now, wall_clock=lambda: EPOCH + self.now)
        cache.observe_node(None, parse_node(node_object(self.case)))
        listed = [self.listed[uid] for uid in sorted(self.listed)]
        changes = ListedChanges.of(cache, listed, lambda _: nullcontext())
        for pod in listed:
            cache.observe_pod(None, pod)
        changes.lose_order(cache)
        if self.topology is not None:
            cache.observe_topology(None, parse_topology(self.topology))
        return cache

    def _observe(self, event: str, pod: Pod) -> None:
        """An event of a pod, as a watch of the API server shows it."""
        if event == DELETED:
            self.listed.pop(pod.key.uid, None)
        else:
            self.listed[pod.key.uid] = pod
        self.cache.observe_pod(event, pod)

    def _scan(self, event: Mapping[str, Any], _: int) -> None:
        self.scans[event["n"]] = event["nrt"]

    def _delivered(self, event: Mapping[str, Any], _: int) -> None:
        self.topology = topology_object(self.case, self.scans[event["n"]], self.scans[0])
        self.cache.observe_topology(None, parse_topology(self.topology))

    def _bind(self, event: Mapping[str, Any], _: int) -> None:
        uid = event["uid"]
        obj = pod_object(uid, self.case["specs"][event["pod"]], self.now)
        self.pods[uid] = obj
        answer = self._answer(parse_pod(obj))
        obj["spec"]["nodeName"] = NODE
        bound = parse_pod(obj)
        if isinstance(answer, ScoredPlacement):
            self.cache.hold(parse_pod({**obj, "spec": {**obj["spec"], "nodeName": ""}}), answer.placement)
        self._observe("MODIFIED", bound)

    def _pod(self, event: Mapping[str, Any], number: int) -> None:
        uid = event["uid"]
        if uid not in self.pods:
            self._bind(event, number)
        obj = self.pods[uid]
        if event["admitted"]:
            obj["status"] = {"phase": "Running", "startTime": _time(self.now), "containerStatuses": [{}]}
        else:
            obj["status"] = {"phase": "Failed", "startTime": _time(self.now), "reason": event["reason"]}
        if not event.get("unseen"):
            self._observe("MODIFIED", parse_pod(obj))
        else:
            self.pending[uid] = "pod"

    def _terminating(self, event: Mapping[str, Any], _: int) -> None:
        obj = self.pods[event["uid"]]
        obj["metadata"]["deletionTimestamp"] = _time(self.now)
        if event["uid"] not in self.pending:
            self._observe("MODIFIED", parse_pod(obj))

    def _end(self, event: Mapping[str, Any], _: int) -> None:
        if event.get("unseen"):
            self.pending[event["uid"]] = "end"
        else:
            self._show(event["uid"], "end")

    def _seen(self, event: Mapping[str, Any], _: int) -> None:
        self._show(event["uid"], self.pending.pop(event["uid"]))

    def _show(self, uid: str, what: str) -> None:
        obj = self.pods[uid]
        self._observe(DELETED if what == "end" else "MODIFIED", parse_pod(obj))

    def _ask(self, event: Mapping[str, Any], number: int) -> None:
        obj = pod_object(f"question-{number}", self.case["specs"][event["pod"]], self.now)
        answer = self._answer(parse_pod(obj))
        tally, admits = self.tally, event["kubelet_admits"]
        tally.asked += 1
        tally.admitted += admits
        if admits and isinstance(answer, Rejection):
            tally.wrong_no[f"{answer.reason.value}: {answer.detail.split('; ')[-1]}"] += 1
            tally.named_no.append(f"{self.case['id']} event {number}: {answer.message}; {answer.detail}")
        if not admits and isinstance(answer, ScoredPlacement) and answer.placement.explores:
            tally.explored.update(answer.placement.explores)
            self._explore(obj, answer.placement, event["reason"])
        elif not admits and isinstance(answer, ScoredPlacement):
            tally.wrong_yes[event["reason"]] += 1
            tally.named.append(f"{self.case['id']} event {number}: {event['reason']}; {answer.placement}")

    def _explore(self, obj: dict[str, Any], placement: Placement, reason: str) -> None:
        """The pod would have been bound and refused; it leaves nothing behind but its object."""
        self.cache.hold(parse_pod(obj), placement)
        obj["spec"]["nodeName"] = NODE
        self._observe("MODIFIED", parse_pod(obj))
        obj["status"] = {"phase": "Failed", "startTime": _time(self.now), "reason": reason}
        self._observe("MODIFIED", parse_pod(obj))

    def offered(self, index: int) -> object:
        """Return the free resources of the node before the event of this index."""
        self.now = float(self.case["events"][index]["t"])
        return self._candidate().offer

    def _candidate(self) -> NodeSnapshot:
        # As every scheduling cycle does first.
        self.cache.judge_found_pods()
        self.cache.expire_unreported()
        candidate = self.cache.nodes[NODE].candidate()
        assert candidate is not None
        return candidate

    def _answer(self, pod: Pod) -> ScoredPlacement | Rejection:
        return evaluate(scheduling_request(pod.request, self.profile), self._candidate(), self.profile)


def class_of(case: Case) -> str:
    """The hazard that a sequence was made for."""
    return str(case.get("class", LONG))
