"""The table of triggers, Kopf's settings, and the dispatcher behind them."""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, TypeVar, cast

import kopf
import pytest

from koord_numa.cluster.lister import PlainParser, ResyncStore
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.core.rebind.plan import RebindRequest
from koord_numa.engine.event_handlers import Callbacks
from koord_numa.handlers import triggers
from koord_numa.handlers.dispatch import Dispatcher, Stores
from koord_numa.handlers.triggers import (
    IDLE,
    TOPOLOGY_IDLE,
    WAITING_IDLE,
    EndlessPauses,
    NoDiffs,
    NoProgress,
    configure,
    waiting_pods,
)
from koord_numa.wire import parse_pod, parse_rebind, parse_topology
from tests.cluster.objects import pod

T = TypeVar("T")

TRIGGERS: Any = triggers
"""Kopf types handlers by everything it could hand over; these take only what they need."""


def parse_ours(raw: Mapping[str, Any]) -> Pod | None:
    return parse_pod(raw) if raw["spec"]["schedulerName"] == "koord-numa" else None


class PlainParsers:
    def __init__(self) -> None:
        self.waiting_pod: PlainParser[Pod] = PlainParser(parse_ours)
        self.topology: PlainParser[NodeResourceTopology] = PlainParser(parse_topology)
        self.rebind: PlainParser[RebindRequest] = PlainParser(parse_rebind)


PARSERS = PlainParsers()


class Recorded:
    """Event handlers of the three kinds, and which pods are pending."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str | None, str]] = []
        self.bound: set[str] = set()
        self.waiting: ResyncStore[Pod] = ResyncStore(self.of("pod", lambda pod: pod.key.name), lambda pod: pod.key.uid)
        self.topologies: ResyncStore[NodeResourceTopology] = ResyncStore(
            self.of("topology", lambda topology: topology.node), lambda topology: topology.node
        )
        self.rebinds: ResyncStore[RebindRequest] = ResyncStore(
            self.of("rebind", lambda rebind: rebind.name), lambda rebind: rebind.uid
        )
        stores = Stores(self.waiting, self.topologies, self.rebinds)
        self.dispatcher = Dispatcher(stores, PARSERS, ("koord-numa",), lambda uid: uid not in self.bound)

    def of(self, kind: str, name: Callable[[T], str]) -> Callbacks[T]:
        def observe(event: str | None, found: T) -> None:
            self.heard.append((kind, event, name(found)))

        return Callbacks(lambda _: None, observe)


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def memo(recorded: Recorded) -> kopf.Memo:
    return kopf.Memo(dispatcher=recorded.dispatcher, queueing=kopf.OperatorSettings().queueing)


def event(kind: str | None, document: Mapping[str, Any]) -> kopf.RawEvent:
    return cast("kopf.RawEvent", {"type": kind, "object": document})


def with_uid(document: dict[str, Any]) -> dict[str, Any]:
    document["metadata"]["uid"] = f"u-{document['metadata']['name']}"
    return document


TOPOLOGY = {
    "apiVersion": "topology.node.k8s.io/v1alpha2",
    "kind": "NodeResourceTopology",
    "metadata": {"name": "n", "uid": "u-n"},
    "zones": [],
}
REBIND = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "RebindResource",
    "metadata": {"name": "r", "uid": "u-r"},
    "spec": {"nodeName": "n"},
}


async def test_every_trigger_only_hands_over(recorded: Recorded, memo: kopf.Memo) -> None:
    TRIGGERS.hand_over_pod(event=event("ADDED", with_uid(pod("a"))), memo=memo)
    TRIGGERS.hand_over_topology(event=event(None, TOPOLOGY), memo=memo)
    await TRIGGERS.rebind(event=event("DELETED", REBIND), memo=memo)
    assert recorded.heard == [("pod", "ADDED", "a"), ("topology", None, "n"), ("rebind", "DELETED", "r")]


async def test_the_worker_of_a_topology_waits_and_others_end_soon(memo: kopf.Memo) -> None:
    waits = {}
    TRIGGERS.hand_over_topology(event=event(None, TOPOLOGY), memo=memo)
    waits["topology"] = memo.queueing.idle_timeout
    TRIGGERS.hand_over_pod(event=event("DELETED", with_uid(pod("a"))), memo=memo)
    waits["pod"] = memo.queueing.idle_timeout
    TRIGGERS.hand_over_topology(event=event(None, TOPOLOGY), memo=memo)
    await TRIGGERS.rebind(event=event("DELETED", REBIND), memo=memo)
    waits["rebind"] = memo.queueing.idle_timeout
    assert waits == {"topology": TOPOLOGY_IDLE, "pod": IDLE, "rebind": IDLE}
    assert TOPOLOGY_IDLE > 60  # exporters' period


def test_the_task_of_a_pod_waits_for_its_bind_unless_many_wait(
    memo: kopf.Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "FEW_WAITING", 2)
    waits = []
    for kind, name in (("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("ADDED", "c"), ("DELETED", "a")):
        TRIGGERS.hand_over_pod(event=event(kind, with_uid(pod(name))), memo=memo)
        waits.append(memo.queueing.idle_timeout)
    TRIGGERS.hand_over_pod(event=event("MODIFIED", with_uid(pod("b"))), memo=memo)
    waits.append(memo.queueing.idle_timeout)
    assert waits == [WAITING_IDLE, WAITING_IDLE, WAITING_IDLE, IDLE, IDLE, WAITING_IDLE]


def topology(uid: str, version: str) -> Mapping[str, Any]:
    return {**TOPOLOGY, "metadata": {"name": "n", "uid": uid, "resourceVersion": version}}


@pytest.mark.parametrize("late", [("DELETED", "8"), ("MODIFIED", "7"), (None, "7")])
def test_late_events_of_a_deleted_topology_are_ignored(
    recorded: Recorded, memo: kopf.Memo, late: tuple[str | None, str]
) -> None:
    """Kopf hands over the events of each uid in a task of its own."""
    TRIGGERS.hand_over_topology(event=event("ADDED", topology("first", "5")), memo=memo)
    TRIGGERS.hand_over_topology(event=event("ADDED", topology("second", "10")), memo=memo)
    kind, version = late
    TRIGGERS.hand_over_topology(event=event(kind, topology("first", version)), memo=memo)
    known = recorded.topologies.get("n")
    assert known is not None
    assert (known.resource_version, len(recorded.heard)) == ("10", 2)
    TRIGGERS.hand_over_topology(event=event("DELETED", topology("second", "12")), memo=memo)
    assert len(recorded.topologies) == 0


def test_versions_of_one_topology_that_go_back_are_believed(recorded: Recorded, memo: kopf.Memo) -> None:
    """As after etcd was restored from a backup."""
    for version in ("500", "20", "not a number"):
        TRIGGERS.hand_over_topology(event=event("MODIFIED", topology("u", version)), memo=memo)
    assert recorded.heard == [("topology", "MODIFIED", "n")] * 3


async def test_pods_of_other_schedulers_are_not_handed_over(recorded: Recorded, memo: kopf.Memo) -> None:
    TRIGGERS.hand_over_pod(event=event("ADDED", with_uid(pod("a", scheduler="default-scheduler"))), memo=memo)
    assert recorded.heard == []


async def test_a_pod_bound_by_this_process_leaves_without_a_handler(recorded: Recorded, memo: kopf.Memo) -> None:
    TRIGGERS.hand_over_pod(event=event("ADDED", with_uid(pod("a"))), memo=memo)
    recorded.bound.add("u-a")
    assert not TRIGGERS.hand_over_pod(event=event("DELETED", with_uid(pod("a"))), memo=memo)
    assert (len(recorded.waiting), recorded.heard) == (0, [("pod", "ADDED", "a")])


def test_a_pod_that_still_waits_here_is_reported_as_gone(recorded: Recorded, memo: kopf.Memo) -> None:
    for kind in ("ADDED", "DELETED"):
        TRIGGERS.hand_over_pod(event=event(kind, with_uid(pod("a"))), memo=memo)
    assert (len(recorded.waiting), recorded.heard) == (0, [("pod", "ADDED", "a"), ("pod", "DELETED", "a")])


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"metadata": {}, "spec": {"schedulerName": "koord-numa"}}, id="no name"),
        pytest.param({"metadata": {"name": "a"}, "spec": {"schedulerName": "koord-numa"}}, id="no uid"),
    ],
)
async def test_what_cannot_be_identified_is_logged_and_left_out(
    recorded: Recorded, memo: kopf.Memo, caplog: pytest.LogCaptureFixture, document: dict[str, Any]
) -> None:
    TRIGGERS.hand_over_pod(event=event("ADDED", document), memo=memo)
    TRIGGERS.hand_over_topology(event=event("ADDED", {"metadata": {}}), memo=memo)
    await TRIGGERS.rebind(event=event("ADDED", {"metadata": {}}), memo=memo)
    assert recorded.heard == []
    assert [record.getMessage().split(" is ignored")[0] for record in caplog.records] == [
        "a pod",
        "a NodeResourceTopology",
        "a RebindResource",
    ]


@pytest.mark.parametrize("registry", triggers.REGISTRIES, ids=["with pods", "without pods"])
def test_only_events_are_handled(registry: kopf.OperatorRegistry) -> None:
    kinds = {name: len(getattr(registry, name).get_all_handlers()) for name in ("_indexing", "_spawning", "_changing")}
    assert kinds == {"_indexing": 0, "_spawning": 0, "_changing": 0}
    assert len(registry._watching.get_all_handlers()) == (2 if registry is triggers.WITHOUT_PODS else 3)


def test_kopf_stores_nothing_and_never_gives_up() -> None:
    settings = kopf.OperatorSettings()
    configure(settings, ["koord-numa"])
    assert isinstance(settings.persistence.diffbase_storage, NoDiffs)
    assert isinstance(settings.persistence.progress_storage, NoProgress)
    assert (settings.posting.enabled, settings.peering.standalone, settings.scanning.disabled) == (False, True, False)
    assert isinstance(settings.networking.error_backoffs, EndlessPauses)
    assert list(islice(settings.networking.error_backoffs, 100))[-1] == 10.0


@pytest.mark.parametrize(
    ("names", "selector"),
    [
        (
            ["koord-numa"],
            "spec.nodeName=,spec.schedulerName=koord-numa,status.phase!=Failed,status.phase!=Succeeded",
        ),
        (["a", "b"], "spec.nodeName=,status.phase!=Failed,status.phase!=Succeeded"),
    ],
)
def test_the_server_selects_waiting_pods(names: list[str], selector: str) -> None:
    assert waiting_pods(names) == selector
