"""From method, path and query to what is asked: the URL structure of the Kubernetes API."""

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from koord_numa.sandbox.apiserver.errors import bad_request
from koord_numa.sandbox.apiserver.serving.request_log import Asked

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_TRUE: Final = ("1", "true", "True", "t", "T", "TRUE")
_NAMESPACE_PARTS: Final = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class Parameters:
    """The query of a request."""

    values: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A parameter as it is, empty when absent."""
        return self.values.get(name, "")

    def flag(self, name: str) -> bool:
        """Whether a boolean parameter is set."""
        return self.values.get(name, "") in _TRUE

    def seconds(self, name: str) -> float | None:
        """A duration as Go writes it, in seconds or milliseconds; ``None`` when absent. Raises 400."""
        text = self.values.get(name, "")
        if not text:
            return None
        found = _DURATION.fullmatch(text)
        if found is None:
            raise bad_request(f'invalid timeout specified in the request URL - "{text}"')
        return float(found[1]) * (0.001 if found[2] == "ms" else 1.0)

    def number(self, name: str) -> int:
        """A whole number, 0 when absent. Raises 400."""
        text = self.values.get(name, "")
        if not text:
            return 0
        try:
            number = int(text)
        except ValueError as problem:
            raise bad_request(f'{name}: Invalid value: "{text}": must be a whole number') from problem
        if number < 0:
            raise bad_request(f"{name}: Invalid value: {number}: must be greater than or equal to 0")
        return number


def parse(method: str, target: str) -> tuple[Asked, Parameters]:
    """What a request line asks for; ``resource`` stays empty for paths that name none, such as ``/version``."""
    path, _, query = target.partition("?")
    parameters = Parameters(dict(parse_qsl(query, keep_blank_values=True))) if query else Parameters()
    parts = [unquote(part) if "%" in part else part for part in path.split("/") if part]
    asked = Asked(method.lower(), path=path, query=query)
    if len(parts) > 2 and parts[0] == "api":
        _resource(asked, "", parts[1], parts[2:])
    elif len(parts) > 3 and parts[0] == "apis":
        _resource(asked, parts[1], parts[2], parts[3:])
    if asked.resource:
        asked.verb = _verb(method, asked, parameters)
        asked.path = ""
    return asked, parameters


def _resource(asked: Asked, group: str, version: str, parts: list[str]) -> None:
    if parts[0] == "watch" and len(parts) > 1:  # the deprecated form: /api/v1/watch/pods
        asked.verb = "watch"
        parts = parts[1:]
    if parts[0] == "namespaces" and len(parts) > 2 and not (len(parts) == 3 and parts[2] in _NAMESPACE_PARTS):
        asked.namespace = parts[1]
        parts = parts[2:]
    asked.group, asked.version, asked.resource = group, version, parts[0]
    asked.name = parts[1] if len(parts) > 1 else ""
    asked.subresource = "/".join(parts[2:])


def _verb(method: str, asked: Asked, parameters: Parameters) -> str:
    if method in ("GET", "HEAD"):
        if asked.verb == "watch" or parameters.flag("watch"):
            return "watch"
        return "get" if asked.name else "list"
    if method == "DELETE":
        return "delete" if asked.name else "deletecollection"
    return _VERBS.get(method, method.lower())
