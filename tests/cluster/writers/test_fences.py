"""Every write of a leader is fenced: a request that could arrive after its lease has ended is not sent."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from koord_numa.cluster.client import Api
from koord_numa.cluster.resources import WRITES
from koord_numa.cluster.writers import ApiBinder, ApiRebindWriter
from koord_numa.core.objects.request import PodKey
from koord_numa.core.rebind.plan import RebindAnswer, RebindPhase, RebindRequest
from koord_numa.ports import NotLeader
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.wire import parse_rebind
from tests.cluster.objects import pod

CRD = Path(__file__).parents[3] / "crds" / "rebindresources.yaml"
ENDED = 0.2
"""Seconds of a lease that are too few for a write."""

PODS: dict[str, Callable[[ApiBinder, PodKey], Awaitable[object]]] = {
    "bind": lambda binder, key: binder.bind(key, "n", {}),
    "evict": lambda binder, key: binder.evict(key, "preempted"),
    "delete": lambda binder, key: binder.delete(key),
    "nominate": lambda binder, key: binder.nominate(key, "n"),
    "set_unschedulable": lambda binder, key: binder.set_unschedulable(key, "no node"),
}
REBINDS: dict[str, Callable[[ApiRebindWriter, RebindRequest], Awaitable[None]]] = {
    "answer": lambda writer, rebind: writer.answer(
        rebind, RebindAnswer(RebindPhase.PENDING, "begun", "2026-01-01T00:01:00Z", 1)
    ),
    "create": lambda writer, _: writer.create_rebind("n", "worth while", dry_run=True),
    "delete": lambda writer, rebind: writer.delete_rebind(rebind),
}


@pytest.mark.parametrize("write", PODS.values(), ids=PODS)
async def test_a_pod_write_is_not_sent_close_to_the_end_of_the_lease(
    server: ApiServer, api: Api, write: Callable[[ApiBinder, PodKey], Awaitable[object]]
) -> None:
    about = server.store.create(pod("a"))["metadata"]
    with pytest.raises(NotLeader):
        await write(ApiBinder(api, lambda: ENDED), PodKey("default", "a", about["uid"]))
    assert server.store.get("pods", "a", "default")["metadata"] == about
    assert server.requests.rules() == set()


@pytest.mark.parametrize("write", REBINDS.values(), ids=REBINDS)
async def test_a_rebind_write_is_not_sent_close_to_the_lease_end(
    server: ApiServer, api: Api, write: Callable[[ApiRebindWriter, RebindRequest], Awaitable[None]]
) -> None:
    server.apply_file(CRD)
    document = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "RebindResource",
        "metadata": {"name": "tidy"},
        "spec": {"nodeName": "n"},
    }
    rebind = parse_rebind(server.store.create(document))
    with pytest.raises(NotLeader):
        await write(ApiRebindWriter(api, lambda: ENDED), rebind)
    assert not {verb for verb, _, _ in server.requests.rules()} & WRITES


@pytest.mark.parametrize("write", PODS.values(), ids=PODS)
async def test_a_write_to_a_pod_is_sent_while_the_lease_lasts(
    server: ApiServer, api: Api, write: Callable[[ApiBinder, PodKey], Awaitable[object]]
) -> None:
    about = server.store.create(pod("a"))["metadata"]
    await write(ApiBinder(api, lambda: 10.0), PodKey("default", "a", about["uid"]))
    assert server.requests.rules()
