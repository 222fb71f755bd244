"""A small client of the API server on aiohttp alone, and the Node of the agent."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict

from koord_numa.cluster.credentials import Credentials, NoCredentials
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import isolation_words
from koord_numa.wire import names

# A small client of the API server on aiohttp alone: the scheduler's client imports its settings, which take 13 MB.

TIMEOUT: Final = aiohttp.ClientTimeout(total=15)  # seconds per response
WATCH_TIMEOUT: Final = 300
"""Seconds after which a watch ends and restarts with a list, which contains all missed changes."""

READ_BUFFER: Final = 2**21
"""Bytes of the read buffer. Fits a watch event with the largest object that etcd accepts."""

APPLY: Final = "application/apply-patch+yaml"
PAGE: Final = 50
"""Objects of a page. A list of 250 pods at once takes 5 to 15 MB for a moment, which the process keeps."""
JSON: Final = "application/json"


class NodeApiError(Exception):
    """A failed request. ``status`` is 0 without a response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class NodeApi:
    """The requests of an agent. Safe for concurrent tasks."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._authorization = ""  # the last header that could be read
        server = credentials.server.rstrip("/")
        if not server.startswith(("http://", "https://")):
            raise NoCredentials(f"the server of the credentials is no URL of http or https: {server}")
        self._session = aiohttp.ClientSession(
            server,
            connector=aiohttp.TCPConnector(ssl=credentials.tls() if server.startswith("https:") else True),
            timeout=TIMEOUT,
            headers=CIMultiDict(
                [("User-Agent", "koord-numa-node-agent"), ("Accept", JSON), *credentials.impersonation]
            ),
            cookie_jar=aiohttp.DummyCookieJar(),  # no state between requests
            read_bufsize=READ_BUFFER,
        )
        # Only values that are set: a ``server_hostname`` of ``None`` would be passed on to TLS.
        options = {"proxy": credentials.proxy, "server_hostname": credentials.server_name}
        self._options: dict[str, Any] = {key: value for key, value in options.items() if value}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """Return the object at a path, ``None`` if it does not exist. Raises ``NodeApiError``."""
        try:
            return await self._send("GET", path, params=params)
        except NodeApiError as error:
            if error.status == 404:
                return None
            raise

    async def apply(self, path: str, obj: Any, manager: str) -> Any:
        """Server-side apply an object without force. Raises ``NodeApiError``, with 409 if another manager owns one of the fields."""
        return await self._send("PATCH", path, params={"fieldManager": manager}, body=obj, kind=APPLY)

    async def post(self, path: str, obj: Any) -> Any:
        """Create an object. Raises ``NodeApiError``."""
        return await self._send("POST", path, body=obj)

    async def watch(self, path: str, params: Mapping[str, str]) -> AsyncIterator[tuple[str, Any]]:
        """
        Yield the pages of a list, then events as ``(type, object)`` until the server ends the watch.

        A page is ``("PAGE", objects)``, the last one ``("LIST", objects)``. Raises ``NodeApiError`` if the list or the
        watch fails.
        """
        listed = await self._send("GET", path, params={**params, "limit": str(PAGE)})
        while token := (listed.get("metadata") or {}).get("continue"):
            yield "PAGE", listed.get("items") or []
            listed = await self._send("GET", path, params={**params, "limit": str(PAGE), "continue": str(token)})
        yield "LIST", listed.get("items") or []
        # Starts at the version of the list, so that no change is missed.
        version = (listed.get("metadata") or {}).get("resourceVersion", "")
        query = {**params, "watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_TIMEOUT)}
        # No total limit for a watch. The read limit exceeds the timeout of the server, so silence means a dead
        # connection.
        endless = aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=WATCH_TIMEOUT + 30)
        try:
            async with self._session.get(
                path, params=query, headers=await self._headers(), timeout=endless, **self._options
            ) as answer:
                if answer.status != 200:
                    raise NodeApiError(answer.status, f"watch {path}: {(await answer.text())[:300]}")
                async for line in answer.content:
                    event = orjson.loads(line)
                    # Usually 410 Gone, if the version is too old: the caller lists again.
                    if event.get("type") == "ERROR":
                        return
                    yield str(event.get("type")), event.get("object") or {}
        except (aiohttp.ClientError, HttpProcessingError, TimeoutError, orjson.JSONDecodeError) as error:
            raise NodeApiError(
                0, f"watch {path}: {error!r}"
            ) from None  # a line beyond the buffer is an HttpProcessingError

    async def _send(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Any = None, kind: str = JSON
    ) -> Any:
        data = None if body is None else orjson.dumps(body)
        headers = await self._headers() | ({} if data is None else {"Content-Type": kind})
        try:
            async with self._session.request(
                method, path, params=params, data=data, headers=headers, **self._options
            ) as answer:
                text = await answer.read()
                if answer.status >= 300:
                    raise NodeApiError(answer.status, f"{method} {path}: {answer.status}: {_message(text)}")
                return orjson.loads(text) if text else None
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
            # repr, since several errors of aiohttp have no text.
            raise NodeApiError(0, f"{method} {path}: {error!r}") from None

    async def _headers(self) -> dict[str, str]:
        authorization = self._credentials.authorization
        if authorization.is_due:
            try:
                # In a thread, because a credential plugin may wait for a login.
                self._authorization = await asyncio.to_thread(authorization.value)
            except (OSError, NoCredentials) as error:
                # The kubelet may be replacing the token. The known token remains valid meanwhile.
                if not self._authorization:
                    raise NodeApiError(0, f"no credentials at the moment: {error}") from None
        return {"Authorization": self._authorization} if self._authorization else {}


def _message(text: bytes) -> str:
    try:
        return str(orjson.loads(text)["message"])[:500]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return text[:300].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class ReservedByNode:
    """
    The Node's UID, the CPUs of ``node.koordinator.sh/reservation``, and the text that koordlet would repeat on the NRT.

    ``isolation`` are the words of the label ``cpu-isolation``, which apply to all pods with a cpuset.
    """

    uid: str = ""
    cpus: CpuSet = EMPTY
    text: str = "{}"
    isolation: frozenset[str] = frozenset()


def read_reservation(node: Mapping[str, Any] | None) -> ReservedByNode:
    """Parse the reservation of a Node. A malformed one reserves nothing, as in Koordinator."""
    metadata = (node or {}).get("metadata") or {}
    uid = str(metadata.get("uid", ""))
    text = (metadata.get("annotations") or {}).get(names.RESERVATION)
    try:
        cpus = CpuSet.parse((orjson.loads(text) or {}).get("reservedCPUs") or "") if text else EMPTY
    except (ValueError, TypeError, AttributeError):
        cpus = EMPTY
    # Built from parsed values: a malformed text of the Node is not repeated on the topology.
    text = orjson.dumps({"reservedCPUs": str(cpus)}).decode() if cpus else "{}"
    words = isolation_words((metadata.get("labels") or {}).get(names.NODE_CPU_ISOLATION, ""))
    return ReservedByNode(uid, cpus, text, words)
