"""Parse JSON with strict models, and by the rules of Go's `encoding/json` where Go is lenient; and object metadata."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime
from functools import cache, lru_cache, partial
from operator import itemgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Generic, TypeVar, Union, get_args, get_origin

import orjson
from cachetools import LRUCache
from msgspec import Meta, ValidationError, convert
from msgspec.structs import fields as fields_of

from koord_numa.core import resources
from koord_numa.core.value_objects import ValueObject
from koord_numa.wire.errors import FieldPath, WireError, meant, mistake, quoted
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
Model = TypeVar("Model", bound="Strict")

Quantity = str | int | float
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Weight = Annotated[int, Meta(ge=1, le=100)]


class Strict(ValueObject, rename="camel"):
    """
    A part of an API object. JSON types must be exact, unknown fields are ignored, ``null`` is only valid for optional fields.

    A msgspec struct: a pydantic model takes five times as long to define and to validate, at every start of a command.
    """


class GoJson(Strict):
    """JSON as Go's ``encoding/json`` reads it: names match case-insensitively, ``null`` leaves the default."""

    @classmethod
    def unknown_names(cls, value: object) -> list[str]:
        """Return the members of a JSON object that the model does not have. ``null`` members count as absent."""
        members, names = value.items() if isinstance(value, dict) else (), _names_of(cls)
        return [str(key) for key, item in members if item is not None and str(key).lower() not in names]

    @classmethod
    def accepted_names(cls) -> list[str]:
        """Return the names of the model's members."""
        return sorted(cls.__struct_encode_fields__)


@cache
def _names_of(model: type[GoJson]) -> dict[str, str]:
    return {name.lower(): name for name in model.__struct_encode_fields__}


MALFORMED: Final = (ValidationError, UnicodeEncodeError)
"""Errors of ``msgspec.convert``. Half a surrogate pair, which only the standard library's JSON reader accepts, raises the second."""

Rewrite = Callable[[Any], Any]


@cache
def _as_go_reads(kind: Any) -> Rewrite | None:
    """Return a function that rewrites JSON of this type with the names of its ``GoJson`` models; ``None`` without such models."""
    if isinstance(kind, type) and issubclass(kind, Strict):
        fields = {field.encode_name: way for field in fields_of(kind) if (way := _as_go_reads(field.type)) is not None}
        names = _names_of(kind) if issubclass(kind, GoJson) else None
        return None if names is None and not fields else partial(_rewritten, names, fields)
    arguments = [it for it in get_args(kind) if it is not NoneType]
    inner = _as_go_reads(arguments[-1]) if arguments else None  # the only one, or the values of a mapping
    return None if inner is None else partial(_each_rewritten, inner, get_origin(kind))


def _rewritten(names: Mapping[str, str] | None, fields: Mapping[str, Rewrite], value: Any) -> Any:
    if names is not None and value is None:
        return {}
    if not isinstance(value, dict):
        return value
    if names is not None:
        # ``null`` leaves the default, so it is omitted. Of names that differ only in case the last counts, as in Go.
        value = {names.get(str(key).lower(), key): item for key, item in value.items() if item is not None}
    return value | {name: way(value[name]) for name, way in fields.items() if name in value}


def _each_rewritten(way: Rewrite, origin: object, value: Any) -> Any:
    if isinstance(value, list) and origin is list:
        return [way(item) for item in value]
    if isinstance(value, dict) and origin is dict:
        return {key: way(item) for key, item in value.items()}
    return way(value) if value is not None and origin in (Union, UnionType) else value


def read(model: type[Model], value: object, path: FieldPath, key: str = "") -> Model:
    """Parse a part of an object as a model. ``key`` is its place below ``path``, used only for messages."""
    found: Model = read_as(model, value, path, key)
    return found


def read_as(kind: Any, value: object, path: FieldPath, key: str = "") -> Any:
    """Parse a value as any type, such as a list of models."""
    way = _as_go_reads(kind)
    value = value if way is None else way(value)
    try:
        return convert(value, kind)
    except MALFORMED as error:
        at, sentence = mistake(kind, value, key) or (key, f"{quoted(value)}: {error}")
        raise (path.at(at) if at else path).error(sentence) from None


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

    def part(self, top: "Head", name: str, model: type[Model]) -> Model:
        """Return ``spec`` or ``status`` of an object. An absent or malformed part is an empty one."""
        return self.collect(lambda: read(model, top.body.get(name) or {}, top.path.at(name)), model())


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


def controller_uid(owners: Iterable[Owner]) -> str:
    """Return the UID of the controlling owner, empty without one."""
    return next((owner.uid for owner in owners if owner.controller), "")


def has_coined_name(owners: Iterable[Owner]) -> bool:
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
