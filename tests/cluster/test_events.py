"""Events are told, merged, limited, and never in the way."""

import asyncio

import pytest

from koord_numa.cluster.client import Api
from koord_numa.cluster.events import EventLimits, EventRecorder
from koord_numa.core.objects.request import PodKey
from koord_numa.ports import ObjectReference
from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault
from koord_numa.settings import EventSettings
from tests.cluster.objects import JsonObject, until

EVENTS = "events.events.k8s.io"
POD = PodKey("default", "a", "u-1")


class FakeTime:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def recorder(api: Api, time: FakeTime) -> EventRecorder:
    return EventRecorder(api, "me", EventLimits(), time)


def events(server: ApiServer) -> list[JsonObject]:
    return server.store.list(EVENTS)


async def test_an_event_says_what_kube_scheduler_would(server: ApiServer, recorder: EventRecorder) -> None:
    recorder.event(POD, warning=False, reason="Scheduled", message="Successfully assigned default/a to n")
    await recorder.flush()
    (found,) = events(server)
    assert found["metadata"]["name"].startswith("a.")
    assert {key: found[key] for key in ("type", "reason", "action", "note", "regarding")} == {
        "type": "Normal",
        "reason": "Scheduled",
        "action": "Binding",
        "note": "Successfully assigned default/a to n",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "a", "uid": "u-1"},
    }
    assert (found["reportingController"], found["reportingInstance"]) == ("koord-numa", "me")


async def test_kubectl_sees_it_as_a_core_event(server: ApiServer, recorder: EventRecorder) -> None:
    recorder.event(POD, warning=True, reason="FailedScheduling", message="0/1 nodes are available")
    await recorder.flush()
    (found,) = server.store.list("events")
    assert (found["involvedObject"]["name"], found["message"]) == ("a", "0/1 nodes are available")


async def test_a_node_event_is_about_the_node(server: ApiServer, recorder: EventRecorder) -> None:
    recorder.node_event("n", warning=True, reason="TwoCPUOwners", message="clash")
    await recorder.flush()
    (found,) = events(server)
    assert found["metadata"]["namespace"] == "default"
    assert found["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}


async def test_the_same_again_is_counted(server: ApiServer, recorder: EventRecorder, time: FakeTime) -> None:
    for _ in range(5):
        recorder.event(POD, warning=True, reason="FailedScheduling", message="no room")
        await recorder.flush()
    assert "series" not in events(server)[0]
    time.now += 61
    recorder.event(POD, warning=True, reason="FailedScheduling", message="no room")
    await recorder.flush()
    (found,) = events(server)
    assert found["series"]["count"] == 6
    assert server.requests.rules() == {("create", "events.k8s.io", "events"), ("patch", "events.k8s.io", "events")}


async def test_a_newer_reason_replaces_an_unposted_one(server: ApiServer, recorder: EventRecorder) -> None:
    other = PodKey("default", "b", "u-2")
    for pod, message in ((POD, "first"), (other, "another"), (POD, "second"), (POD, "third")):
        recorder.event(pod, warning=True, reason="FailedScheduling", message=message)
    for message in ("1", "2"):
        recorder.event(POD, warning=True, reason="DoubleHold", message=message)
    await recorder.flush()
    recorder.event(POD, warning=True, reason="FailedScheduling", message="fourth")
    await recorder.flush()
    posted = sorted(events(server), key=lambda event: int(event["metadata"]["resourceVersion"]))
    assert [event["note"] for event in posted] == ["third", "another", "1", "2", "fourth"]
    assert recorder.dropped == 0


async def test_a_series_whose_event_has_expired_begins_anew(
    server: ApiServer, recorder: EventRecorder, time: FakeTime
) -> None:
    recorder.event(POD, warning=True, reason="FailedScheduling", message="no room")
    await recorder.flush()
    server.store.delete(EVENTS, events(server)[0]["metadata"]["name"], "default")
    time.now += 4000
    recorder.event(POD, warning=True, reason="FailedScheduling", message="no room")
    await recorder.flush()
    (found,) = events(server)
    assert "series" not in found


async def test_ever_new_words_about_one_pod_are_limited(
    server: ApiServer, recorder: EventRecorder, time: FakeTime
) -> None:
    for number in range(40):
        recorder.event(POD, warning=True, reason="FailedScheduling", message=f"no room {number}")
        await recorder.flush()
    assert (len(events(server)), recorder.dropped) == (25, 15)
    recorder.event(PodKey("default", "b", "u-2"), warning=True, reason="FailedScheduling", message="another pod")
    time.now += 300
    recorder.event(POD, warning=True, reason="FailedScheduling", message="one more after a while")
    await recorder.flush()
    assert len(events(server)) == 27


async def test_the_queue_is_bounded(server: ApiServer, api: Api) -> None:
    recorder = EventRecorder(api, "me", EventLimits(EventSettings(queue=3)))
    for number in range(5):
        recorder.event(PodKey("default", f"p{number}", f"u{number}"), warning=False, reason="Scheduled", message="x")
    await recorder.flush()
    assert (len(events(server)), recorder.dropped) == (3, 2)


async def test_a_flood_of_placements_leaves_room_for_warnings(server: ApiServer, api: Api) -> None:
    recorder = EventRecorder(api, "me", EventLimits(EventSettings(queue=3)))
    for number in range(5):
        recorder.event(PodKey("default", f"p{number}", f"u{number}"), warning=False, reason="Scheduled", message="x")
    recorder.event(POD, warning=True, reason="FailedScheduling", message="no room")
    await recorder.flush()
    in_order = sorted(events(server), key=lambda event: int(event["metadata"]["resourceVersion"]))
    assert [event["regarding"]["name"] for event in in_order] == ["a", "p0", "p1", "p2"]


async def test_events_are_posted_at_a_limited_rate(
    server: ApiServer, api: Api, time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        time.now += seconds

    recorder = EventRecorder(api, "me", EventLimits(EventSettings(rate=4, burst=2)), time)
    for number in range(5):
        recorder.event(PodKey("default", f"p{number}", f"u{number}"), warning=False, reason="Scheduled", message="x")
    with monkeypatch.context() as patched:
        patched.setattr("koord_numa.cluster.events.asyncio.sleep", sleep)
        task = asyncio.create_task(recorder.run())
        while recorder.posted < 5:
            await asyncio.wait({task}, timeout=0.01)
    task.cancel()
    assert (len(events(server)), pauses) == (5, [0.25] * 3)


async def test_long_notes_are_cut_to_what_the_server_takes(server: ApiServer, recorder: EventRecorder) -> None:
    recorder.event(POD, warning=True, reason="FailedScheduling", message="ö" * 2000)
    await recorder.flush()
    note = events(server)[0]["note"]
    assert (len(note.encode()) <= 1024, note[:3], note[-3:]) == (True, "ööö", "...")


@pytest.mark.parametrize("status", [403, 404, 409, 422, 500])
async def test_failures_are_dropped(server: ApiServer, recorder: EventRecorder, status: int) -> None:
    server.faults.add(Fault(status=status))
    recorder.event(POD, warning=False, reason="Scheduled", message="x")
    await recorder.flush()
    assert (recorder.posted, recorder.dropped) == (0, 1)


async def test_it_runs_in_the_background_and_reconnects(server: ApiServer, api: Api) -> None:
    recorder = EventRecorder(api, "me")
    server.faults.add(Fault(effect=Effect.LOSE_ANSWER, verb="create", count=1))
    task = asyncio.create_task(recorder.run())
    for number in range(3):
        recorder.event(PodKey("default", f"p{number}", f"u{number}"), warning=False, reason="Scheduled", message="x")
    await until(lambda: (recorder.posted, recorder.dropped) == (2, 1))
    recorder.event(POD, warning=False, reason="Scheduled", message="later")
    await until(lambda: recorder.posted == 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_warning_is_posted_when_the_server_is_back(server: ApiServer, recorder: EventRecorder) -> None:
    server.faults.add(Fault(status=503, verb="create", count=1))
    server.faults.add(Fault(effect=Effect.DROP, verb="create", count=2))
    task = asyncio.create_task(recorder.run())
    recorder.event(POD, warning=True, reason="FailedScheduling", message="no room")
    await until(lambda: [event["note"] for event in events(server)] == ["no room"])
    assert recorder.dropped == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_slowly_accepted_event_delays_no_others(server: ApiServer, recorder: EventRecorder) -> None:
    server.faults.add(Fault(effect=Effect.DELAY, resource="events", seconds=None, count=1))
    task = asyncio.create_task(recorder.run())
    for name in "abc":
        recorder.event(PodKey("default", name, name), warning=True, reason="FailedScheduling", message="no")
    await until(lambda: len(events(server)) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_object_with_the_longest_name_has_events_too(server: ApiServer, recorder: EventRecorder) -> None:
    recorder.event(PodKey("default", "a" * 253, "u-1"), warning=True, reason="FailedScheduling", message="no room")
    recorder.object_event(
        ObjectReference("Namespace", "", "b." * 126 + "b", "u-2"), warning=True, reason="Quarantined", message="odd"
    )
    await recorder.flush()
    assert {event["regarding"]["kind"] for event in events(server)} == {"Pod", "Namespace"}
    assert recorder.dropped == 0
