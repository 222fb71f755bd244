"""
Requests to the JSON API of a running scheduler.

The scheduler is given by a URL such as ``http://localhost:10251`` behind ``kubectl port-forward``. The default is the
pod that holds the Lease, through a similar port-forward.
"""

import gzip
import http.client
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

import click
import orjson

from koord_numa.cli.cluster.access import Access
from koord_numa.cluster.blocking import METADATA, BlockingApi, PodConnection
from koord_numa.cluster.credentials import NoCredentials
from koord_numa.cluster.resources import LEASES, PODS, Call
from koord_numa.core.value_objects import ValueObject
from koord_numa.ports import ClusterError, Gone
from koord_numa.wire.names import DEFAULT_PORT

TIMEOUT: Final = 15.0
"""Timeout in seconds for a scheduler given by URL."""

REACH_SECONDS: Final = 3.0
"""Timeout in seconds of each request to find the leader and to get its answer. Afterwards the objects are used."""

OBJECTS: Final = "none"
"""Value of ``--scheduler`` that disables requests to a scheduler."""


class Answered(ValueObject):
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
        return _ask_leader(access, path)
    except (ClusterError, NoCredentials, ResponseError, http.client.HTTPException, OSError, ValueError):
        return None  # the objects are used instead, and report problems of the cluster


def _ask_named(access: Access, url: str, path: str) -> Mapping[str, Any]:
    try:
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        with closing(kind(parts.hostname or "", parts.port, timeout=TIMEOUT)) as connection:
            return _ask(connection, parts.path.rstrip("/") + path, _credentials(access) if is_secure else {})
    except (OSError, ValueError, http.client.HTTPException) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise click.ClickException(
            f"the scheduler at {url} is not reachable: {text}; is kubectl port-forward running?"
        ) from error


def _ask_leader(access: Access, path: str) -> Answered:
    """Request a document of the leader. Raises the errors of requests, and ``Gone`` when the Lease names no pod."""
    name, namespace = access.lease
    with access.open(REACH_SECONDS) as api:
        found = api.send(Call("get", LEASES, namespace, name))
        holder = str((found.get("spec") or {}).get("holderIdentity") or "")
        namespace = _namespace_of(api, holder)
        with closing(PodConnection(api, namespace, holder, DEFAULT_PORT)) as connection:
            return Answered(_ask(connection, path), f"{namespace}/{holder}")


def _namespace_of(api: BlockingApi, pod: str) -> str:
    """
    Return the namespace of the pod that holds the Lease, which may differ from that of the Lease.

    A deployed scheduler uses its pod name as identity. Raises ``Gone`` for any other identity.
    """
    if pod:
        listed = api.send(Call("list", PODS), params={"fieldSelector": f"metadata.name={pod}"}, accept=METADATA)
        for item in listed.get("items") or ():
            return str(item["metadata"]["namespace"])
    raise Gone(f"the Lease's holder {pod!r} is not a pod of this cluster")


def _ask(
    connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    connection.request(
        "GET", path, headers={"Accept": "application/json", "Accept-Encoding": "gzip", **(headers or {})}
    )
    response = connection.getresponse()
    raw = response.read()
    if response.headers.get("Content-Encoding") == "gzip":
        raw = gzip.decompress(raw)
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        found = {"message": raw.decode(errors="replace").strip()}
    if response.status >= 300 or not isinstance(found, dict):
        message = found.get("message", "") if isinstance(found, dict) else ""
        raise ResponseError(message or f"the scheduler answers {response.status}", response.status)
    return found


def _credentials(access: Access) -> dict[str, str]:
    """Return the Authorization header of the context, if there are credentials."""
    try:
        value = access.authorization()
    except NoCredentials:
        return {}
    return {"Authorization": value} if value else {}
