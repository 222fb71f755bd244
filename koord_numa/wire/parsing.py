"""Parse JSON with strict pydantic models, and by the rules of Go's `encoding/json` where Go is lenient; and object metadata."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Final, Generic, Protocol, TypeVar

import orjson
from cachetools import LRUCache
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from koord_numa.core import resources
from koord_numa.core.value_objects import ValueObject
from koord_numa.wire.errors import FieldPath, WireError, first_mistake, meant, quoted
from koord_numa.wire.names import RENAMED_RESOURCES

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_LEAST: Final = 512
"""Minimum weight of a cached value, in characters. The smallest parsed pod request and its entry take about 3 kB."""


class ParsedCache(Generic[Key, Value]):
    """A cache of parsed values with LRU eviction. A parsed value takes about four times the memory of its text."""

    def __init__(self, characters: int) -> None:
        """Create a cache. ``characters`` bounds the text of all values together."""
        self._known: LRUCache[Key, tuple[int, Value]] = LRUCache(maxsize=characters, getsizeof=itemgetter(0))

    @property
    def characters(self) -> int:
        """Return the bound on the text of all values together."""
        return int(self._known.maxsize)

    def __len__(self) -> int:
        """Return the number of cached values."""
        return len(self._known)

    def get(self, key: Key) -> Value | None:
        """Return the cached value, or ``None``."""
        try:  # ``LRUCache.get`` makes two look-ups, and most keys are present
            return self._known[key][1]
        except KeyError:
            return None

    def put(self, key: Key, value: Value, characters: int) -> Value:
        """Cache and return a value parsed from a text of this length. A value above a quarter of the bound is not cached."""
        weight = max(_LEAST, characters)
        if weight * 4 < self._known.maxsize:
            self._known[key] = (weight, value)
        return value


LONGEST_JSON: Final = 1 << 20
"""Maximum characters of an annotation. The API server allows 256 KiB for all annotations of an object."""

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)

Quantity = str | int | float
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Weight = Annotated[int, Field(ge=1, le=100)]


DEFERRED: Final = ConfigDict(defer_build=True)
"""Validators are built on first use. Building all of them takes a third of the import time, and a command uses few."""


class Strict(BaseModel):
    """A part of an API object. JSON types must be exact, unknown fields are ignored, ``null`` counts as absent."""

    model_config = ConfigDict(
        strict=True, extra="ignore", alias_generator=to_camel, arbitrary_types_allowed=False, defer_build=True
    )


class GoJson(Strict):
    """JSON as Go's ``encoding/json`` reads it: names match case-insensitively, ``null`` leaves the default."""

    _names: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        # Per model instead of per object, which saves a pass over the fields.
        cls._names = {(field.alias or name).lower(): field.alias or name for name, field in cls.model_fields.items()}

    @classmethod
    def unknown_names(cls, value: object) -> list[str]:
        """Return the members of a JSON object that the model does not have. ``null`` members count as absent."""
        members = value.items() if isinstance(value, dict) else ()
        return [str(key) for key, item in members if item is not None and str(key).lower() not in cls._names]

    @classmethod
    def accepted_names(cls) -> list[str]:
        """Return the names of the model's members."""
        return sorted(cls._names.values())

    @model_validator(mode="before")
    @classmethod
    def _as_go_reads(cls, value: object) -> object:
        if value is None:
            return {}
        if not isinstance(value, dict):
            return value
        names = cls._names
        # ``null`` leaves the default, so it is omitted. Of names that differ only in case the last counts, as in Go.
        return {names.get(str(key).lower(), key): item for key, item in value.items() if item is not None}


def read(model: type[Model], value: object, path: FieldPath, key: str = "") -> Model:
    """Parse a part of an object as a model. ``key`` is its place below ``path``, used only for messages."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _message_of(error, value, path.at(key) if key else path) from None


def read_as(adapter: TypeAdapter[T], value: object, path: FieldPath) -> T:
    """Parse a value as any type, such as a list of models."""
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        raise _message_of(error, value, path) from None


def load_json(text: object, path: FieldPath) -> object:
    """Return the JSON value in an annotation."""
    if not isinstance(text, str):
        raise path.error(f"{quoted(text)} is not a text")
    # Before decoding, so that a value of many megabytes is not built only to be rejected.
    if len(text) > LONGEST_JSON:
        raise path.error(f"{len(text)} characters are too many, at most {LONGEST_JSON} are read")
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise path.error(f"{quoted(text)} is not JSON: {error.msg}") from None
    return value


def read_json(model: type[Model], text: object, path: FieldPath) -> Model:
    """Parse an annotation that holds a JSON object."""
    return read(model, load_json(text, path), path)


class EnumReader(Generic[T]):
    """A closed enumeration with canonical and additional spellings, all case-insensitive."""

    def __init__(self, canonical: Mapping[str, T], also: Mapping[str, T] | None = None) -> None:
        # Canonical spellings last, so that they override additional ones that differ only in case.
        self._known = {word.lower(): value for word, value in {**(also or {}), **canonical}.items()}
        self._words = sorted(word for word in canonical if word)
        self._listed = ", ".join(self._words)

    def read(self, word: str, path: FieldPath) -> T:
        """Return the value of ``word``. Raises ``WireError`` with the accepted words."""
        try:
            return self._known[word.lower()]
        except KeyError:
            raise path.error(f"{quoted(word)} is none of {self._listed}{meant(word, self._words)}") from None


class Problems:
    """The problem of one object. A malformed part is replaced by a default, and the first message is kept."""

    def __init__(self) -> None:
        self.problem = ""

    def collect(self, reading: Callable[[], T], otherwise: T) -> T:
        """Return the result of ``reading``, or ``otherwise`` if it raises ``WireError``."""
        try:
            return reading()
        except WireError as error:
            # The first message is reported: later ones are often its consequences.
            self.problem = self.problem or str(error)
            return otherwise


def plain(value: object, path: FieldPath) -> dict[str, Any]:
    """Return an API object as a plain dict. Kopf passes mappings of its own type. Raises ``WireError``."""
    if isinstance(value, dict):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    raise path.error(f"{quoted(value)} is not an object")


def is_nested_deeper(value: object, most: int) -> bool:
    """Return whether a JSON value has more than ``most`` levels of objects and lists."""
    # Level by level: a recursion would reach Python's limit first.
    level: list[Any] = [value]
    for _ in range(most + 1):
        level = [each for each in level if isinstance(each, dict | list)]
        if not level:
            return False
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return True


def read_time(text: str, path: FieldPath, key: str = "") -> float:
    """Return an RFC 3339 time at ``key`` below ``path`` as seconds since the epoch."""
    # RFC 3339 times have at most 35 characters. Longer texts would only fill the cache.
    seconds = _seconds(text[:40])
    if seconds is None:
        raise (path.at(key) if key else path).error(f"{quoted(text)} is not a time")
    return seconds


@lru_cache(maxsize=8192)
def _seconds(text: str) -> float | None:
    try:
        time = datetime.fromisoformat(text)
        # A time without a time zone is ambiguous.
        return time.timestamp() if time.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _message_of(error: ValidationError, value: object, path: FieldPath) -> WireError:
    key, sentence = first_mistake(error, value)
    return (path.at(key) if key else path).error(sentence)


LARGEST: Final = 2**60
"""Upper bound of an amount (an exbibyte), so that sums over a cluster stay below 2**63."""

_LONGEST: Final = 64  # characters of a quantity; bounds the memory of the caches below


def requested(values: Mapping[str, Quantity] | None, path: FieldPath) -> dict[str, int]:
    """Return requests in internal units, rounded up as ``resource.Quantity.MilliValue``. Raises ``WireError`` for negative amounts."""
    if not values:
        return {}
    amounts = {name: _parsed(_request, name, value, path) for name, value in values.items()}
    for name, amount in amounts.items():
        # After parsing, since Go's notation allows a sign in several places.
        if amount < 0:
            raise path.at(name).error(f"{quoted(values[name])} is negative")
    return _renamed(amounts)


def supplied(values: Mapping[str, Quantity] | None, path: FieldPath) -> dict[str, int]:
    """Return supplied amounts, rounded down. Negative amounts count as 0."""
    return {} if not values else _renamed({name: supply(name, value, path) for name, value in values.items()})


def supply(name: str, value: Quantity, path: FieldPath) -> int:
    """Return the supplied amount of one resource."""
    return max(0, _parsed(_supply, name, value, path))


def below_zero(name: str, value: Quantity | None, path: FieldPath) -> int:
    """Return by how much an amount of a resource is below zero, else 0."""
    # Negative amounts are rare and start with a sign: other amounts are not parsed twice.
    return max(0, -_parsed(_supply, name, value, path)) if value is not None and str(value).startswith("-") else 0


def current_name(resource: str) -> str:
    """Return the current name of a resource that may have a deprecated name."""
    return RENAMED_RESOURCES.get(resource, resource)


def _renamed(amounts: dict[str, int]) -> dict[str, int]:
    if RENAMED_RESOURCES.keys().isdisjoint(amounts):
        return amounts
    old = {current_name(name): amount for name, amount in amounts.items() if name in RENAMED_RESOURCES}
    # A current name overrides its deprecated spelling.
    return old | {name: amount for name, amount in amounts.items() if name not in RENAMED_RESOURCES}


def _parsed(parse: Callable[[str, Quantity], int | None], name: str, value: Quantity, path: FieldPath) -> int:
    # Checked before the cache, which would keep texts of any length.
    short = len(name) <= 4 * _LONGEST and (not isinstance(value, str) or len(value) <= _LONGEST)
    # Amounts of a status have no model that checks their types.
    found = parse(name, value) if short and isinstance(value, str | int | float) else None
    if found is None:
        raise path.at(name).error(f"{quoted(value)} is not a quantity")
    return found


@lru_cache(maxsize=32768)
def _request(name: str, value: Quantity) -> int | None:
    try:
        # Limited to an exbibyte: sums over a cluster must fit into 64 bits.
        return min(LARGEST, resources.amount(name, value))
    except ValueError:
        return None


@lru_cache(maxsize=32768)
def _supply(name: str, value: Quantity) -> int | None:
    try:
        return min(LARGEST, resources.supply(name, value))
    except ValueError:
        return None


def rfc3339(moment: datetime) -> str:
    """Return a ``metav1.Time``: UTC, whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """Return a ``metav1.MicroTime``: UTC, microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shortened(text: str, limit: int) -> str:
    """Return the text, or its beginning with an ellipsis if it has more than ``limit`` bytes of UTF-8."""
    raw = text.encode()
    # Cut by bytes. A character that is cut in half is dropped.
    return text if len(raw) <= limit else raw[: limit - 3].decode("utf-8", "ignore") + "..."


class Owner(Strict):
    """An owner reference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(Strict):
    """The fields of ``metadata`` that the parsers of this package read."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str | None = None
    generation: Int64 | None = None
    owner_references: list[Owner] | None = None

    @property
    def controller(self) -> str:
        """Return the UID of the controlling owner, empty without one."""
        return controller_uid(self.owner_references or ())

    @property
    def has_coined_name(self) -> bool:
        """Return whether the API server generated the name of this pod, with a suffix of five random characters."""
        return has_coined_name(self.owner_references or ())


class OwnerReference(Protocol):
    """An owner reference of any parser."""

    api_version: str
    kind: str
    uid: str
    controller: bool | None


def controller_uid(owners: Iterable[OwnerReference]) -> str:
    """Return the UID of the controlling owner, empty without one."""
    return next((owner.uid for owner in owners if owner.controller), "")


def has_coined_name(owners: Iterable[OwnerReference]) -> bool:
    """Return whether a controlling owner leaves the names of its pods to the API server."""
    return any(owner.controller and (owner.api_version, owner.kind) in _COINING for owner in owners)


class Head(ValueObject):
    """The identity and metadata of an object, with the path for errors about it."""

    path: FieldPath
    name: str
    namespace: str
    uid: str
    labels: dict[str, str]
    annotations: dict[str, str]
    metadata: Metadata
    created: float
    body: dict[str, Any]  # the whole object


def head(obj: object, kind: str, problems: Problems, known: Metadata | None = None) -> Head:
    """
    Return the identity and metadata of an object.

    Messages about malformed metadata go to ``problems``. ``known`` is the metadata if it has been parsed already.

    Raises ``WireError`` if the object has no name, since it then cannot be identified.
    """
    body = plain(obj, FieldPath(kind))
    raw = plain(body.get("metadata"), FieldPath(kind).at("metadata"))
    # Read without the model: every later message needs the name.
    name, namespace, uid = raw.get("name"), raw.get("namespace") or "", raw.get("uid") or ""
    if not isinstance(name, str) or not name:
        raise FieldPath(kind).at("metadata.name").error(f"{quoted(name)} is not a name")
    if not isinstance(namespace, str) or not isinstance(uid, str):
        wrong = namespace if isinstance(uid, str) else uid
        raise FieldPath.of(kind, name).at("metadata").error(f"{quoted(wrong)} is neither a namespace nor a uid")
    path = FieldPath.of(kind, f"{namespace}/{name}" if namespace else name)
    # Malformed metadata keeps the identity, so that the problem can be reported by name.
    metadata = known or problems.collect(lambda: read(Metadata, raw, path, "metadata"), _BLANK)
    stamp = metadata.creation_timestamp
    created = problems.collect(lambda: read_time(stamp, path, "metadata.creationTimestamp"), 0.0) if stamp else 0.0
    return Head(
        path=path,
        name=name,
        namespace=namespace,
        uid=uid,
        labels=metadata.labels or {},
        annotations=metadata.annotations or {},
        metadata=metadata,
        created=created,
        body=body,
    )


def version(top: Head) -> str:
    """Return the resource version, empty without one."""
    return top.metadata.resource_version or ""


_BLANK: Final = Metadata()

_COINING: Final = {
    ("v1", "ReplicationController"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "DaemonSet"),
    ("batch/v1", "Job"),
}
"""Controllers that set ``generateName`` and never a name (``GetPodFromTemplate`` in pkg/controller/controller_utils.go)."""
