"""The whole operator in this process, against an API server that can be made to fail."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from logging import getLogger
from pathlib import Path

import pytest

from koord_numa.app.runtime import Options, Runtime
from koord_numa.operator import serve
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.settings import LeaseSettings, PodSource, Settings
from tests.cluster.objects import until
from tests.e2e.world import JsonObject

STATUS = "scheduling.koordinator.sh/resource-status"
TOPOLOGIES = "noderesourcetopologies.topology.node.k8s.io"
SETTINGS = Settings(lease=LeaseSettings(duration=60, renew=45, retry=2))
"""With a lease that is not lost because the machine is busy."""


ONE_PAIR: JsonObject = {
    "machines": [{"name": "n", "sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"}]
}


@contextmanager
def quiet_kopf() -> Iterator[None]:
    """Kopf configures levels of loggers for good."""
    level = getLogger("kopf.objects").level
    yield
    getLogger("kopf.objects").setLevel(level)


@asynccontextmanager
async def operating(
    server: ApiServer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings = SETTINGS,
    pods: PodSource = PodSource.KOPF,
    user: str = "",
) -> AsyncIterator[Runtime]:
    """The operator as ``koord-numa run`` runs it, with the rights of ``user``, or the administrator's."""
    made: list[Runtime] = []
    connect = Runtime.connect

    async def remembered(options: Options) -> Runtime:
        made.append(await connect(options))
        return made[0]

    monkeypatch.setattr(Runtime, "connect", remembered)
    kubeconfig = server.write_kubeconfig(folder / "kubeconfig", user)
    with quiet_kopf():
        task = asyncio.create_task(
            serve(Options(settings.model_copy(update={"pod_source": pods}), kubeconfig, "me", port=0))
        )
        await until(lambda: made or task.done())
        try:
            yield made[0]
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


EITHER_WATCH = pytest.mark.parametrize("pods", PodSource, ids=lambda pods: f"pods watched by {pods.value}")


def get(server: ApiServer, name: str) -> JsonObject:
    return server.store.get("pods", name, "default")


def placed(server: ApiServer, name: str) -> str:
    return str(get(server, name)["spec"].get("nodeName", ""))


def events_about(server: ApiServer, name: str) -> list[tuple[str, str]]:
    found = server.store.list("events.events.k8s.io")
    return [(event["reason"], event["note"]) for event in found if event["regarding"]["name"] == name]
