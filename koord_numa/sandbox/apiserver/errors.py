"""The answers of a Kubernetes API server to requests it does not fulfil, as exceptions that know their ``Status`` object."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from koord_numa.sandbox.apiserver.objects.documents import JsonObject

if TYPE_CHECKING:
    from koord_numa.sandbox.apiserver.objects.kinds import Kind


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason why an object is invalid: the path of the field, what is wrong with it, and the reason's machine word."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        """As ``field.ErrorList`` prints it: ``spec.containers: Required value``."""
        return f"{self.field}: {self.message}"


def invalid_value(field: str, value: object, why: str) -> Cause:
    """A value that is of the right type and still wrong."""
    return Cause(field, f"Invalid value: {_quoted(value)}: {why}")


def required(field: str, why: str = "") -> Cause:
    """A field that must be there."""
    return Cause(field, f"Required value: {why}" if why else "Required value", "FieldValueRequired")


def unsupported(field: str, value: object, choices: Sequence[str]) -> Cause:
    """A value that is none of an enumeration."""
    known = ", ".join(f'"{choice}"' for choice in choices)
    return Cause(field, f"Unsupported value: {_quoted(value)}: supported values: {known}", "FieldValueNotSupported")


def too_long(field: str, most: int) -> Cause:
    """A text with more bytes than may be stored."""
    return Cause(field, f"Too long: may not be more than {most} bytes", "FieldValueTooLong")


def duplicate(field: str, value: object) -> Cause:
    """A value that occurs twice where it may occur once."""
    return Cause(field, f"Duplicate value: {_quoted(value)}", "FieldValueDuplicate")


def forbidden_field(field: str, why: str) -> Cause:
    """A field that may not be set, or may not change."""
    return Cause(field, f"Forbidden: {why}", "FieldValueForbidden")


def _quoted(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


NO_SUCH_API: Final = "404 page not found"


class ApiError(Exception):
    """A refusal: HTTP code, the reason's machine word, a sentence, and the details that clients look into."""

    def __init__(self, code: int, reason: str, message: str, details: JsonObject | None = None) -> None:
        """``details`` is sent as it is; ``retryAfterSeconds`` in it also becomes the Retry-After header."""
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> JsonObject:
        """The ``Status`` object that is sent for it."""
        body: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        body["message"] = self.message
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        body["code"] = self.code
        return body


def bad_request(message: str) -> ApiError:
    """The request itself makes no sense."""
    return ApiError(400, "BadRequest", message)


def not_found(kind: "Kind", name: str) -> ApiError:
    """No such object."""
    return ApiError(404, "NotFound", f'{kind.qualified} "{name}" not found', _details(kind, name))


def no_such_path() -> ApiError:
    """Nothing is served at this path of a known API."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def no_such_api() -> ApiError:
    """No API is served at this path. Answered as plain text, as no API is there to write a Status."""
    return ApiError(404, "", NO_SUCH_API)


def already_exists(kind: "Kind", name: str) -> ApiError:
    """There is an object of this name."""
    return ApiError(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists', _details(kind, name))


def conflict(kind: "Kind", name: str, why: str) -> ApiError:
    """The object is not, or no longer, as the request presumes."""
    message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(kind, name))


def modified_meanwhile(kind: "Kind", name: str) -> ApiError:
    """The optimistic lock did not hold."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(kind, name, why)


def forbidden(kind: "Kind", name: str, why: str) -> ApiError:
    """Admission or authorization refuses it."""
    return ApiError(403, "Forbidden", f'{kind.qualified} "{name}" is forbidden: {why}', _details(kind, name))


def invalid(kind: "Kind", name: str, causes: Sequence[Cause]) -> ApiError:
    """The object breaks rules; every broken one is named with its field path."""
    listed = str(causes[0]) if len(causes) == 1 else "[" + ", ".join(str(cause) for cause in causes) + "]"
    details: JsonObject = {"name": name, "group": kind.group, "kind": kind.kind}
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    group = f".{kind.group}" if kind.group else ""
    return ApiError(422, "Invalid", f'{kind.kind}{group} "{name}" is invalid: {listed}', details)


def expired(message: str) -> ApiError:
    """The history that was asked for is no longer kept."""
    return ApiError(410, "Expired", message)


def too_old(asked: int, oldest: int) -> ApiError:
    """A watch starts before the oldest change that is kept."""
    return expired(f"too old resource version: {asked} ({oldest})")


def too_large(asked: int, current: int) -> ApiError:
    """A list of a revision that the server has not reached."""
    message = f"Too large resource version: {asked}, current: {current}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return ApiError(504, "Timeout", f"Timeout: {message}", {"causes": causes, "retryAfterSeconds": 1})


def invalid_revision(text: str) -> str:
    """The message about a resourceVersion that is no number."""
    return f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'


def method_not_allowed(method: str) -> ApiError:
    """The resource exists but has no such verb."""
    return ApiError(
        405, "MethodNotAllowed", f"the server does not allow this method on the requested resource ({method})"
    )


def unsupported_media_type(got: str, accepted: Sequence[str]) -> ApiError:
    """The body is in a format this resource does not take."""
    message = f"the body of the request was in an unknown format ({got}) - accepted media types include: {', '.join(accepted)}"
    return ApiError(415, "UnsupportedMediaType", message)


def too_many_requests(message: str, retry_after: int, details: JsonObject | None = None) -> ApiError:
    """Come back in ``retry_after`` seconds; 0 leaves the moment to the client."""
    about = dict(details or {})
    if retry_after:
        about["retryAfterSeconds"] = retry_after
    return ApiError(429, "TooManyRequests", message, about)


def timed_out(seconds: float) -> ApiError:
    """The deadline that the client set with ``timeout`` is over, and nothing was done."""
    message = f"Timeout: request did not complete within requested timeout - context deadline exceeded ({seconds:g}s)"
    return ApiError(504, "Timeout", message)


def _details(kind: "Kind", name: str) -> JsonObject:
    return (
        {"name": name, "group": kind.group, "kind": kind.plural} if kind.group else {"name": name, "kind": kind.plural}
    )
