"""
Requests to the JSON API of a running scheduler.

The scheduler is given by a URL such as ``http://localhost:10251`` behind ``kubectl port-forward``. The default is the
pod that holds the Lease, through a similar port-forward.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import click
import orjson

from koord_numa.cli.cluster.access import Access
from koord_numa.cluster.client import Api
from koord_numa.cluster.credentials import NoCredentials
from koord_numa.cluster.port_forward import forwarded
from koord_numa.cluster.resources import LEASES, PODS, Call
from koord_numa.cluster.serving.http_server import DEFAULT_PORT
from koord_numa.ports import ClusterError, Gone

TIMEOUT: Final = 15.0
"""Timeout in seconds for a scheduler given by URL."""

REACH_SECONDS: Final = 3.0
"""Seconds to find a scheduler and get its answer without a URL. Afterwards the objects are used."""

OBJECTS: Final = "none"
"""Value of ``--scheduler`` that disables requests to a scheduler."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A document of a running scheduler, and the scheduler that answered."""

    document: Mapping[str, Any]
    by: str


class ResponseError(click.ClickException):
    """An error response of the scheduler. ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def ask(access: Access, url: str, path: str) -> Answered | None:
    """
    Return a document of the scheduler at the URL, or of the leader without a URL.

    None if the leader cannot be reached or does not know the object, if files are used without a URL, and for ``none``.
    Raises ``click.ClickException`` with a message in one line when the scheduler at the URL does not answer.
    """
    if url == OBJECTS or (access.files and not url):
        return None
    if url:
        return Answered(_ask_named(access, url, path), url)
    try:
        return asyncio.run(_ask_leader(access, path))
    except (ClusterError, NoCredentials, ResponseError, aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None  # the objects are used instead, and report problems of the cluster


def _ask_named(access: Access, url: str, path: str) -> Mapping[str, Any]:
    try:
        return asyncio.run(_ask(access, url.rstrip("/") + path))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise click.ClickException(
            f"the scheduler at {url} cannot be asked: {text}; is kubectl port-forward running?"
        ) from error


async def _ask_leader(access: Access, path: str) -> Answered:
    """Request a document of the leader. Raises the errors of requests, and ``Gone`` when the Lease names no pod."""
    lease = access.settings.lease
    async with asyncio.timeout(REACH_SECONDS), await access.connect() as api:
        found = await api.send(Call("get", LEASES, lease.namespace, lease.name))
        holder = str((found.get("spec") or {}).get("holderIdentity") or "")
        namespace = await _namespace_of(api, holder)
        async with forwarded(api, namespace, holder, DEFAULT_PORT) as port:
            return Answered(await _ask(access, f"http://127.0.0.1:{port}{path}"), f"{namespace}/{holder}")


async def _namespace_of(api: Api, pod: str) -> str:
    """
    Return the namespace of the pod that holds the Lease, which may differ from that of the Lease.

    A deployed scheduler uses its pod name as identity. Raises ``Gone`` for any other identity.
    """
    if pod:
        listed = await api.send(Call("list", PODS), params={"fieldSelector": f"metadata.name={pod}"})
        for item in listed.get("items") or ():
            return str(item["metadata"]["namespace"])
    raise Gone(f"the Lease's holder {pod!r} is no pod of this cluster")


async def _ask(access: Access, url: str) -> Mapping[str, Any]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    headers = {"Accept": "application/json", **(await _credentials(access) if url.startswith("https:") else {})}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session, session.get(url) as response:
        raw = await response.read()
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        found = {"message": raw.decode(errors="replace").strip()}
    if response.status >= 300 or not isinstance(found, dict):
        message = found.get("message", "") if isinstance(found, dict) else ""
        raise ResponseError(message or f"the scheduler answers {response.status}", response.status)
    return found


async def _credentials(access: Access) -> dict[str, str]:
    """Return the Authorization header of the context, if there are credentials."""
    try:
        value = await asyncio.to_thread(access.authorization)
    except NoCredentials:
        return {}
    return {"Authorization": value} if value else {}
