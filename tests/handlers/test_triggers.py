"""The table of triggers, Kopf's settings, and the reception behind them."""

from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

import kopf
import pytest

from koord_numa.core.node import NodeResourceTopology
from koord_numa.core.rebind_request import RebindRequest
from koord_numa.core.request import Pod
from koord_numa.core.vocabulary import CpuOwner
from koord_numa.engine.scheduler import Scheduler
from koord_numa.handlers import triggers
from koord_numa.handlers.dispatch import Dispatcher
from koord_numa.handlers.freshness import Freshness
from koord_numa.handlers.settings import EndlessPauses, NoDiffs, NoProgress, configure, waiting_pods
from koord_numa.settings import Settings
from tests.cluster.objects import pod

TRIGGERS: Any = triggers
"""Kopf types handlers by everything it could hand over; these take only what they need."""


class Listener:
    """An engine and a rebind handle that only listen."""

    settings = Settings()

    def __init__(self) -> None:
        self.heard: list[tuple[str, str | None, str]] = []
        self.bound: set[str] = set()

    def waits(self, uid: str) -> bool:
        return uid not in self.bound

    def observe_waiting(self, event: str | None, found: Pod) -> None:
        self.heard.append(("pod", event, found.key.name))

    def observe_topology(self, event: str | None, found: NodeResourceTopology) -> None:
        self.heard.append(("topology", event, found.node))

    def observe_rebind(self, event: str | None, found: RebindRequest) -> None:
        self.heard.append(("rebind", event, found.name))


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def memo(listener: Listener) -> kopf.Memo:
    return kopf.Memo(reception=Dispatcher(cast("Scheduler", listener), listener))


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


async def test_every_trigger_only_hands_over(listener: Listener, memo: kopf.Memo) -> None:
    await TRIGGERS.pod_waits(event=event("ADDED", with_uid(pod("a"))), memo=memo)
    await TRIGGERS.topology_changed(event=event(None, TOPOLOGY), memo=memo)
    await TRIGGERS.rebind_asked(event=event("DELETED", REBIND), memo=memo)
    assert listener.heard == [("pod", "ADDED", "a"), ("topology", None, "n"), ("rebind", "DELETED", "r")]


async def test_pods_of_other_schedulers_are_not_handed_over(listener: Listener, memo: kopf.Memo) -> None:
    await TRIGGERS.pod_waits(event=event("ADDED", with_uid(pod("a", scheduler="default-scheduler"))), memo=memo)
    assert listener.heard == []


async def test_a_pod_that_we_have_bound_leaves_without_a_word(listener: Listener, memo: kopf.Memo) -> None:
    await TRIGGERS.pod_waits(event=event("ADDED", with_uid(pod("a"))), memo=memo)
    gone = event("DELETED", with_uid(pod("a")))
    assert TRIGGERS.is_news(event=gone, memo=memo)
    listener.bound.add("u-a")
    assert not TRIGGERS.is_news(event=gone, memo=memo)
    assert TRIGGERS.is_news(event=event("MODIFIED", with_uid(pod("a"))), memo=memo)
    assert (len(memo.reception.waiting), listener.heard) == (0, [("pod", "ADDED", "a")])


async def test_a_list_reads_only_what_is_not_on_the_roll(memo: kopf.Memo) -> None:
    await TRIGGERS.pod_waits(event=event("ADDED", with_uid(pod("a"))), memo=memo)
    await TRIGGERS.topology_changed(event=event(None, TOPOLOGY), memo=memo)
    reception: Dispatcher = memo.reception
    assert reception.listed_pod(with_uid(pod("a"))) is reception.waiting.known("u-a")
    assert reception.listed_topology(TOPOLOGY) is reception.topologies.known("n")
    listed = reception.listed_pod(with_uid(pod("b")))
    assert listed is not None
    assert (listed.key.name, reception.waiting.known("u-b")) == ("b", None)
    assert reception.listed_topology({**TOPOLOGY, "metadata": {"name": "m", "uid": "u-m"}}).node == "m"
    assert reception.listed_pod(with_uid(pod("c", scheduler="default-scheduler"))) is None


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"metadata": {}, "spec": {"schedulerName": "koord-numa"}}, id="no name"),
        pytest.param({"metadata": {"name": "a"}, "spec": {"schedulerName": "koord-numa"}}, id="no uid"),
    ],
)
async def test_what_cannot_be_identified_is_said_and_left_out(
    listener: Listener, memo: kopf.Memo, caplog: pytest.LogCaptureFixture, document: dict[str, Any]
) -> None:
    await TRIGGERS.pod_waits(event=event("ADDED", document), memo=memo)
    await TRIGGERS.topology_changed(event=event("ADDED", {"metadata": {}}), memo=memo)
    await TRIGGERS.rebind_asked(event=event("ADDED", {"metadata": {}}), memo=memo)
    assert listener.heard == []
    assert [record.getMessage().split(" is ignored")[0] for record in caplog.records] == [
        "a pod",
        "a NodeResourceTopology",
        "a RebindResource",
    ]


def test_only_events_are_handled() -> None:
    registry = kopf.get_default_registry()
    kinds = {name: len(getattr(registry, name).get_all_handlers()) for name in ("_indexing", "_spawning", "_changing")}
    assert kinds == {"_indexing": 0, "_spawning": 0, "_changing": 0}
    assert len(registry._watching.get_all_handlers()) >= 3


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


def test_data_age_counts_from_the_last_new_version() -> None:
    now = 100.0
    heard: list[str | None] = []
    freshness = Freshness(lambda kind, _: heard.append(kind), lambda: now)
    first = NodeResourceTopology("n", CpuOwner.KUBELET, resource_version="1")
    freshness.observe("ADDED", first)
    now = 130.0
    freshness.observe(None, first)
    assert freshness.ages() == {"n": 30.0}
    freshness.observe("MODIFIED", NodeResourceTopology("n", CpuOwner.KUBELET, resource_version="2"))
    assert freshness.ages() == {"n": 0.0}
    freshness.observe("DELETED", first)
    assert (freshness.ages(), heard) == ({}, ["ADDED", None, "MODIFIED", "DELETED"])
