"""HTTP answers: JSON bodies, Status objects, warnings and Retry-After."""

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from koord_numa.sandbox.apiserver.errors import NO_SUCH_API, ApiError
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dumps
from koord_numa.sandbox.apiserver.objects.kinds import Kind

JSON: Final = "application/json"


def body(content: bytes, status: int = 200, warnings: Sequence[str] = ()) -> web.Response:
    """A JSON text as it is."""
    answer = web.Response(body=content, status=status, headers={"Content-Type": JSON})
    for warning in warnings:
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        answer.headers.add("Warning", f'299 - "{quoted}"')
    return answer


def document(content: JsonObject, status: int = 200) -> web.Response:
    """A JSON document."""
    return body(dumps(content), status)


def text(content: str) -> web.Response:
    """Plain text."""
    return web.Response(text=content)


def success(status: int = 200, kind: Kind | None = None, name: str = "", uid: str = "") -> web.Response:
    """A Status that says that it is done, with the details of the object it is about."""
    content: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if kind is not None:
        content["details"] = {
            "name": name,
            **({"group": kind.group} if kind.group else {}),
            "kind": kind.plural,
            "uid": uid,
        }
    if status != 200:
        content["code"] = status
    return document(content, status)


def refusal(error: ApiError) -> web.Response:
    """A Status that says why not."""
    if error.message == NO_SUCH_API:
        return web.Response(text=f"{NO_SUCH_API}\n", status=error.code)
    answer = document(error.status(), error.code)
    retry_after = error.details.get("retryAfterSeconds")
    if retry_after:
        answer.headers["Retry-After"] = str(retry_after)
    return answer
