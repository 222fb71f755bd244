"""The sandbox's own endpoints for other processes: faults, the request log, compaction. Never delayed or dropped themselves."""

from collections.abc import Callable
from dataclasses import dataclass

import orjson
from aiohttp import web
from pydantic import ValidationError

from koord_numa.sandbox.apiserver.errors import bad_request, no_such_path
from koord_numa.sandbox.apiserver.faults import Fault, Faults
from koord_numa.sandbox.apiserver.serving import answers
from koord_numa.sandbox.apiserver.serving.request_log import RequestLog
from koord_numa.wire.validation_messages import sentence_of

PREFIX = "/sandbox/"


@dataclass(frozen=True, slots=True)
class Control:
    """What can be steered over HTTP.

    ``POST /sandbox/faults`` takes a fault and answers ``{"id": n}``; ``GET`` lists them, ``DELETE`` clears them, ``DELETE
    /sandbox/faults/n`` takes one away. ``POST /sandbox/compact`` forgets history. ``GET`` and ``DELETE
    /sandbox/requests`` read and empty the request log.
    """

    faults: Faults
    requests: RequestLog
    compact: Callable[[], int]

    async def answer(self, request: web.BaseRequest, path: str) -> web.Response:
        """Serve one of these endpoints. Raises 400 and 404."""
        thing, _, which = path.removeprefix(PREFIX).strip("/").partition("/")
        action = (request.method, thing)
        if action == ("POST", "faults") and not which:
            return await self._add(request)
        if action == ("GET", "faults"):
            return answers.document({"faults": self.faults.describe()})
        if action == ("DELETE", "faults"):
            if which:
                self.faults.remove(int(which) if which.isdigit() else 0)
            else:
                self.faults.clear()
            return answers.document({"faults": self.faults.describe()})
        if action == ("POST", "compact"):
            return answers.document({"revision": self.compact()})
        if action == ("GET", "requests"):
            return answers.document({"requests": self.requests.describe()})
        if action == ("DELETE", "requests"):
            self.requests.clear()
            return answers.document({"requests": []})
        raise no_such_path()

    async def _add(self, request: web.BaseRequest) -> web.Response:
        try:
            asked = orjson.loads(await request.read())
        except orjson.JSONDecodeError as problem:
            raise bad_request(f"the body is not JSON: {problem.msg}") from None
        try:
            fault = Fault.model_validate(asked)
        except ValidationError as problem:
            raise bad_request(sentence_of(problem, asked, ("not a fault",))) from None
        return answers.document({"id": self.faults.add(fault)}, 201)
