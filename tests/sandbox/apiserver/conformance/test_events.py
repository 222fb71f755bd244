"""Both event APIs: one set of events."""

from typing import Any

import pytest

from tests.sandbox.apiserver.client import (
    Api,
)

EVENTS = "/api/v1/namespaces/default/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def core_event(**fields: Any) -> dict[str, Any]:
    """An event of the old API."""
    about = {"kind": "Pod", "namespace": "default", "name": "p", "uid": "1"}
    return {
        "metadata": {"name": "p.1"},
        "involvedObject": about,
        "reason": "Scheduled",
        "message": "done",
        "type": "Normal",
        **fields,
    }


def new_event(**fields: Any) -> dict[str, Any]:
    """An event of the new API."""
    return {
        "metadata": {"name": "p.2"},
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p", "uid": "1"},
        "reason": "Scheduled",
        "note": "done",
        "type": "Normal",
        "action": "Binding",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "koord-numa",
        "reportingInstance": "koord-numa-0",
        **fields,
    }


async def test_both_event_apis_show_the_same_events(api: Api) -> None:
    await api.create(EVENTS, core_event(source={"component": "kubelet"}, count=3))
    await api.create(NEW_EVENTS, new_event())
    core = (await api.get(EVENTS)).body["items"]
    new = (await api.get(NEW_EVENTS)).body["items"]
    assert [(one["apiVersion"], one["message"], one["involvedObject"]["name"]) for one in core] == [
        ("v1", "done", "p")
    ] * 2
    assert [(one["apiVersion"], one["note"], one["regarding"]["name"]) for one in new] == [
        ("events.k8s.io/v1", "done", "p")
    ] * 2
    assert (core[1]["reportingComponent"], new[0]["deprecatedSource"], new[0]["deprecatedCount"]) == (
        "koord-numa",
        {"component": "kubelet"},
        3,
    )


async def test_events_are_watched_in_the_api_of_the_watcher(api: Api) -> None:
    async with api.watch(EVENTS) as old, api.watch(NEW_EVENTS) as new:
        await api.create(NEW_EVENTS, new_event())
        assert ((await old.next())["object"]["message"], (await new.next())["object"]["note"]) == ("done", "done")


@pytest.mark.parametrize(
    "selector",
    ["involvedObject.name=p,involvedObject.kind=Pod", "reason=Scheduled,type=Normal", "involvedObject.uid=1"],
)
async def test_events_are_selected_by_their_object(api: Api, selector: str) -> None:
    await api.create(EVENTS, core_event())
    assert len((await api.get(EVENTS, fieldSelector=selector)).body["items"]) == 1
    assert (await api.get(EVENTS, fieldSelector="involvedObject.name=q")).body["items"] == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"action": ""}, "action"),
        ({"reportingController": ""}, "reportingController"),
        ({"reportingInstance": "x" * 129}, "reportingInstance"),
        ({"note": "x" * 1025}, "message"),
        ({"type": "Odd"}, "type"),
        ({"regarding": {"kind": "Pod", "namespace": "other", "name": "p"}}, "involvedObject.namespace"),
    ],
)
async def test_new_events_are_checked(api: Api, change: dict[str, Any], field: str) -> None:
    answer = await api.post(NEW_EVENTS, new_event(**change))
    assert answer.reason == (422, "Invalid")
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == [field]
