"""Writes of a rebind, against a server with the behavior of a real one."""

from pathlib import Path

import pytest

from koord_numa.cluster.client import Api
from koord_numa.cluster.writers import MOVES_SHOWN, ApiRebindWriter
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.rebind.plan import RebindAnswer, RebindMove, RebindPhase, RebindRequest
from koord_numa.ports import Conflict, Gone, Invalid, UnknownOutcome
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions, Effect, Fault
from koord_numa.wire import parse_rebind
from tests.cluster.objects import JsonObject, pod

STATUS = "scheduling.koordinator.sh/resource-status"
CRD = Path(__file__).parents[2] / "crds" / "rebindresources.yaml"
NOW = "2026-01-01T00:01:00Z"


@pytest.fixture
def writer(api: Api) -> ApiRebindWriter:
    return ApiRebindWriter(api)


def seated(server: ApiServer, status: str = '{"cpuset":"0-1"}', name: str = "a") -> PodKey:
    document = pod(name, node="n")
    document["metadata"] |= {"annotations": {STATUS: status, "other": "kept"}, "labels": {"app": "x"}}
    about = server.store.create(document)["metadata"]
    return PodKey(about["namespace"], about["name"], about["uid"])


def asked(server: ApiServer, name: str = "tidy") -> RebindRequest:
    server.apply_file(CRD)
    document: JsonObject = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "RebindResource",
        "metadata": {"name": name},
        "spec": {"nodeName": "n"},
    }
    return parse_rebind(server.store.create(document))


async def test_only_the_cpus_change(server: ApiServer, writer: ApiRebindWriter) -> None:
    key = seated(server, '{"cpuset":"0-1","numaNodeResources":[{"node":0,"resources":{"cpu":"2"}}],"unknown":{"x":1}}')
    before = server.store.get("pods", "a", "default")
    await writer.patch_cpus(await writer.read_pod(key), CpuSet.parse("4-5"))
    after = server.store.get("pods", "a", "default")
    assert after["metadata"]["annotations"].pop(STATUS) == (
        '{"cpuset":"4-5","numaNodeResources":[{"node":0,"resources":{"cpu":"2"}}],"unknown":{"x":1}}'
    )
    del before["metadata"]["annotations"][STATUS], before["metadata"]["resourceVersion"]
    del after["metadata"]["resourceVersion"]
    assert after == before
    assert server.requests.rules() == {("get", "", "pods"), ("patch", "", "pods")}


async def test_a_pod_that_changed_meanwhile_is_left_alone(server: ApiServer, writer: ApiRebindWriter) -> None:
    revision = await writer.read_pod(seated(server))
    server.store.patch("pods", "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    with pytest.raises(Conflict):
        await writer.patch_cpus(revision, CpuSet.parse("4-5"))
    assert (await writer.read_pod(revision.pod.key)).status_text == '{"cpuset":"0-1"}'


async def test_a_pod_created_anew_is_left_alone(server: ApiServer, writer: ApiRebindWriter) -> None:
    revision = await writer.read_pod(seated(server))
    server.store.delete("pods", "a", "default", DeleteOptions(grace=0))
    with pytest.raises(Gone):
        await writer.patch_cpus(revision, CpuSet.parse("4-5"))
    seated(server)
    with pytest.raises(Gone):
        await writer.patch_cpus(revision, CpuSet.parse("4-5"))
    with pytest.raises(Gone):
        await writer.read_pod(revision.pod.key)


async def test_a_status_that_cannot_be_understood_is_never_rewritten(
    server: ApiServer, writer: ApiRebindWriter
) -> None:
    revision = await writer.read_pod(seated(server, "[]"))
    with pytest.raises(Invalid, match="is not a JSON object"):
        await writer.patch_cpus(revision, CpuSet.parse("4-5"))


async def test_a_lost_answer_leaves_the_outcome_open(server: ApiServer, writer: ApiRebindWriter) -> None:
    revision = await writer.read_pod(seated(server))
    server.faults.add(Fault(effect=Effect.LOSE_ANSWER, verb="patch", resource="pods", count=1))
    with pytest.raises(UnknownOutcome):
        await writer.patch_cpus(revision, CpuSet.parse("4-5"))
    assert (await writer.read_pod(revision.pod.key)).status_text == '{"cpuset":"4-5"}'


async def test_answers_are_read_again(server: ApiServer, writer: ApiRebindWriter) -> None:
    request = asked(server)
    many = tuple(RebindMove("default", f"p{number}", "0", "1") for number in range(MOVES_SHOWN + 1))
    await writer.answer(request, RebindAnswer(RebindPhase.SUCCEED, "done", NOW, 1, many, started=NOW))
    seen = await writer.read_rebind(request)
    assert (seen.phase, seen.started, seen.observed_generation) == (RebindPhase.SUCCEED, 1767225660.0, 1)
    status = server.store.get("rebindresources.scheduling.koordinator.sh", "tidy")["status"]
    assert (status["moves"], len(status["plan"])) == (MOVES_SHOWN + 1, MOVES_SHOWN)
    group = "scheduling.koordinator.sh"
    assert server.requests.rules() == {("get", group, "rebindresources"), ("patch", group, "rebindresources/status")}


async def test_an_answer_is_never_given_to_another(server: ApiServer, writer: ApiRebindWriter) -> None:
    request = asked(server)
    server.store.delete("rebindresources.scheduling.koordinator.sh", "tidy")
    answer = RebindAnswer(RebindPhase.SUCCEED, "done", NOW, 1)
    with pytest.raises(Gone):
        await writer.answer(request, answer)
    asked(server)
    with pytest.raises(Gone):
        await writer.answer(request, answer)
    with pytest.raises(Gone):
        await writer.read_rebind(request)
