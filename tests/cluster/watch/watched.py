"""A running informer and what it shows."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from koord_numa.cluster.client import Api
from koord_numa.cluster.informer import Informer, InformerTimeouts
from koord_numa.cluster.lister import ListedKind
from koord_numa.cluster.resources import PODS, Resource
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions
from koord_numa.settings import BackoffSettings
from tests.cluster.objects import until

QUICK = InformerTimeouts(silence=0.5, watch=60.0, absent=0.02, backoff=BackoffSettings(initial=0.01, max=0.05))


def seen(raw: Mapping[str, Any]) -> tuple[str, str]:
    """The fields of an object that the tests' informers keep: its name, and a field that changes."""
    return raw["metadata"]["name"], (raw["metadata"].get("labels") or {}).get("v", "")


class Picture:
    """An event handler that keeps what an informer shows."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}
        self.lists = 0
        self.syncs = 0

    def replace(self, found: Iterable[tuple[str, str]]) -> None:
        self.lists += 1
        self.objects = dict(found)

    def observe(self, event: str | None, found: tuple[str, str]) -> None:
        if event == "DELETED":
            self.objects.pop(found[0], None)
        else:
            self.objects[found[0]] = found[1]

    def synced(self) -> None:
        self.syncs += 1


class Watched:
    """A running informer and what it shows."""

    def __init__(self, api: Api, kind: ListedKind[tuple[str, str]], patience: InformerTimeouts) -> None:
        self.picture = Picture()
        self.informer = Informer(api, kind, self.picture, patience)

    async def shows(self, *names: str) -> None:
        await until(lambda: sorted(self.picture.objects) == sorted(names))


@asynccontextmanager
async def mirror_of(
    api: Api, resource: Resource = PODS, fields: str = "", *, optional: bool = False, patience: InformerTimeouts = QUICK
) -> AsyncIterator[Watched]:
    watched = Watched(api, ListedKind(resource, seen, fields, optional), patience)
    task = asyncio.create_task(watched.informer.run())
    try:
        yield watched
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def delete(server: ApiServer, name: str) -> None:
    server.store.delete("pods", name, "default", DeleteOptions(grace=0))
