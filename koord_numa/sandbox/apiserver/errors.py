"""Error responses of the API server as exceptions that render their ``Status`` object."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from koord_numa.sandbox.apiserver.documents import JsonObject

if TYPE_CHECKING:
    from koord_numa.sandbox.apiserver.kinds import Kind


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason why an object is invalid: the field path, the message and the ``CauseType``."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        """Format the cause like ``field.ErrorList``: ``spec.containers: Required value``."""
        return f"{self.field}: {self.message}"


def invalid_value(field: str, value: object, why: str) -> Cause:
    """Return the cause for a value of the right type that is not valid."""
    return Cause(field, f"Invalid value: {_quoted(value)}: {why}")


def required(field: str, why: str = "") -> Cause:
    """Return the cause for a required field that is absent."""
    return Cause(field, f"Required value: {why}" if why else "Required value", "FieldValueRequired")


def unsupported(field: str, value: object, choices: Sequence[str]) -> Cause:
    """Return the cause for a value outside an enumeration."""
    known = ", ".join(f'"{choice}"' for choice in choices)
    return Cause(field, f"Unsupported value: {_quoted(value)}: supported values: {known}", "FieldValueNotSupported")


def too_long(field: str, most: int) -> Cause:
    """Return the cause for a text that exceeds the maximum of ``most`` bytes."""
    return Cause(field, f"Too long: may not be more than {most} bytes", "FieldValueTooLong")


def duplicate(field: str, value: object) -> Cause:
    """Return the cause for a value that must be unique and occurs twice."""
    return Cause(field, f"Duplicate value: {_quoted(value)}", "FieldValueDuplicate")


def forbidden_field(field: str, why: str) -> Cause:
    """Return the cause for a field that must not be set or must not change."""
    return Cause(field, f"Forbidden: {why}", "FieldValueForbidden")


def _quoted(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


NO_SUCH_API: Final = "404 page not found"


class ApiError(Exception):
    """An error response: HTTP code, ``StatusReason``, message, and details for clients."""

    def __init__(self, code: int, reason: str, message: str, details: JsonObject | None = None) -> None:
        """Create the error.

        ``details`` is sent unchanged. Its ``retryAfterSeconds`` also sets the Retry-After header.
        """
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> JsonObject:
        """Return the ``Status`` object of the response."""
        body: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        body["message"] = self.message
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        body["code"] = self.code
        return body


def bad_request(message: str) -> ApiError:
    """Return the error for a malformed request."""
    return ApiError(400, "BadRequest", message)


def not_found(kind: "Kind", name: str) -> ApiError:
    """Return the error for an object that does not exist."""
    return ApiError(404, "NotFound", f'{kind.qualified} "{name}" not found', _details(kind, name))


def no_such_path() -> ApiError:
    """Return the error for an unknown path within a served API."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def no_such_api() -> ApiError:
    """Return the error for a path outside every API. Its response is plain text instead of a ``Status``."""
    return ApiError(404, "", NO_SUCH_API)


def already_exists(kind: "Kind", name: str) -> ApiError:
    """Return the error for creating an object whose name is in use."""
    return ApiError(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists', _details(kind, name))


def conflict(kind: "Kind", name: str, why: str) -> ApiError:
    """Return the error for a request whose precondition does not hold for the object."""
    message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(kind, name))


def modified_meanwhile(kind: "Kind", name: str) -> ApiError:
    """Return the error for an update with an outdated resourceVersion."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind, name, why)


def forbidden(kind: "Kind", name: str, why: str) -> ApiError:
    """Return the error for a request that admission or authorization rejects."""
    return ApiError(403, "Forbidden", f'{kind.qualified} "{name}" is forbidden: {why}', _details(kind, name))


def invalid(kind: "Kind", name: str, causes: Sequence[Cause]) -> ApiError:
    """Return the error for an object that fails validation. It lists every cause with its field path."""
    listed = str(causes[0]) if len(causes) == 1 else "[" + ", ".join(str(cause) for cause in causes) + "]"
    details: JsonObject = {"name": name, "group": kind.group, "kind": kind.kind}
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    group = f".{kind.group}" if kind.group else ""
    return ApiError(422, "Invalid", f'{kind.kind}{group} "{name}" is invalid: {listed}', details)


def expired(message: str) -> ApiError:
    """Return the error for a revision whose history is no longer kept."""
    return ApiError(410, "Expired", message)


def too_old(asked: int, oldest: int) -> ApiError:
    """Return the error for a watch that starts before the oldest change that is kept."""
    return expired(f"too old resource version: {asked} ({oldest})")


def too_large(asked: int, current: int) -> ApiError:
    """Return the error for a list at a revision that the server has not reached."""
    message = f"Too large resource version: {asked}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return ApiError(504, "Timeout", f"Timeout: {message}", {"causes": causes, "retryAfterSeconds": 1})


def invalid_revision(text: str) -> str:
    """Return the message for a resourceVersion that is not a number."""
    return f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'


def method_not_allowed(method: str) -> ApiError:
    """Return the error for a verb that the resource does not support."""
    return ApiError(
        405, "MethodNotAllowed", f"the server does not allow this method on the requested resource ({method})"
    )


def unsupported_media_type(got: str, accepted: Sequence[str]) -> ApiError:
    """Return the error for a body in a format that the resource does not accept."""
    message = f"the body of the request was in an unknown format ({got}) - accepted media types include: {', '.join(accepted)}"
    return ApiError(415, "UnsupportedMediaType", message)


def too_many_requests(message: str, retry_after: int, details: JsonObject | None = None) -> ApiError:
    """Return the error that asks the client to retry after ``retry_after`` seconds.

    0 leaves the delay to the client.
    """
    about = dict(details or {})
    if retry_after:
        about["retryAfterSeconds"] = retry_after
    return ApiError(429, "TooManyRequests", message, about)


def timed_out(seconds: float) -> ApiError:
    """Return the error for a request that reached the deadline of its ``timeout`` parameter. Nothing was changed."""
    message = f"Timeout: request did not complete within requested timeout - context deadline exceeded ({seconds:g}s)"
    return ApiError(504, "Timeout", message)


def _details(kind: "Kind", name: str) -> JsonObject:
    return (
        {"name": name, "group": kind.group, "kind": kind.plural} if kind.group else {"name": name, "kind": kind.plural}
    )
