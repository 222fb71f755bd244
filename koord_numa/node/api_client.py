"""A small client of the API server on aiohttp alone, and the Node of the agent."""

import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import isolation_words
from koord_numa.wire import names

# A small client of the API server on aiohttp alone: a full client would double the agent's memory.
#
# In a cluster, the token and certificate of the service account are used, and the token file is read periodically. A
# kubeconfig is for tests by hand: it is parsed by kubernetes-asyncio, which is imported only then.

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_LIFE: Final = 60.0
"""Seconds after which the token file is read again. The kubelet renews it long before it expires."""

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


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Address and credentials of the API server. ``token_file`` overrides ``token``."""

    server: str
    token: str = ""
    token_file: Path | None = None
    tls: ssl.SSLContext | None = None


def in_cluster(environment: Mapping[str, str]) -> ApiAccess:
    """Return the access of the agent's pod. Raises ``NodeApiError`` outside of a cluster."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (SERVICE_ACCOUNT / "token").exists():
        raise NodeApiError(0, "no service account: run inside a cluster, or name a kubeconfig")
    address = f"[{host}]" if ":" in host else host
    # Only the certificate authority of the cluster: the system's would accept any public certificate for the address.
    tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
    return ApiAccess(f"https://{address}:{port}", token_file=SERVICE_ACCOUNT / "token", tls=tls)


async def from_kubeconfig(path: Path) -> ApiAccess:
    """Return the access of a kubeconfig. Raises ``NodeApiError`` if it is unusable."""
    from kubernetes_asyncio import client, config  # noqa: PLC0415  (40 MB, for kubeconfigs only)

    found = client.Configuration()
    # A malformed file raises various errors.
    try:
        await config.load_kube_config(config_file=str(path), client_configuration=found)
    except (config.ConfigException, OSError, KeyError, TypeError, ValueError) as error:
        raise NodeApiError(0, f"{path}: {error}") from None
    except RecursionError:
        raise NodeApiError(0, f"{path} is nested too deeply") from None
    host = found.host or ""
    if not host.startswith(("http://", "https://")):
        raise NodeApiError(0, f"{path}: {host!r} is not a server address")
    try:
        tls = _tls(found) if host.startswith("https") else None
    except OSError as error:  # includes errors of ssl
        raise NodeApiError(0, f"{path}: its certificates cannot be used: {error}") from None
    # The name of the key depends on the version of kubernetes-asyncio.
    token = found.api_key.get("BearerToken") or found.api_key.get("authorization") or ""
    return ApiAccess(host.rstrip("/"), token=token.removeprefix("Bearer "), tls=tls)


def _tls(found: Any) -> ssl.SSLContext:
    """Return the TLS context of a client configuration. Raises ``OSError``."""
    tls = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if found.cert_file:
        tls.load_cert_chain(found.cert_file, found.key_file)
    if not found.verify_ssl:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


class NodeApi:
    """The requests of an agent. Safe for concurrent tasks."""

    def __init__(self, access: ApiAccess) -> None:
        self._access = access
        self._token, self._read_at = access.token, -TOKEN_LIFE  # read at the first request
        connector = aiohttp.TCPConnector(ssl=access.tls) if access.tls else aiohttp.TCPConnector()
        self._session = aiohttp.ClientSession(
            access.server,
            connector=connector,
            timeout=TIMEOUT,
            headers={"User-Agent": "koord-numa-node-agent", "Accept": JSON},
            cookie_jar=aiohttp.DummyCookieJar(),  # no state between requests
            read_bufsize=READ_BUFFER,
        )

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
            async with self._session.get(path, params=query, headers=self._headers(), timeout=endless) as answer:
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
        headers = self._headers() | ({} if data is None else {"Content-Type": kind})
        try:
            async with self._session.request(method, path, params=params, data=data, headers=headers) as answer:
                text = await answer.read()
                if answer.status >= 300:
                    raise NodeApiError(answer.status, f"{method} {path}: {answer.status}: {_message(text)}")
                return orjson.loads(text) if text else None
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
            # repr, since several errors of aiohttp have no text.
            raise NodeApiError(0, f"{method} {path}: {error!r}") from None

    def _headers(self) -> dict[str, str]:
        if self._access.token_file is not None and monotonic() - self._read_at > TOKEN_LIFE:
            # Blocking, but on a tmpfs: microseconds once a minute.
            try:
                self._token, self._read_at = self._access.token_file.read_text().strip(), monotonic()
            except OSError as error:
                # The kubelet may be replacing the file. The known token remains valid meanwhile.
                if not self._token:
                    raise NodeApiError(0, f"{self._access.token_file}: {error.strerror}") from None
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}


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
