"""
Publishing the NodeResourceTopology: by server-side apply under our own field manager, never against another publisher.

Theory: a field has one owner. Where the topology updater of NFD, resource-topology-exporter or koordlet writes the zones, theirs are
right and ours would be a fight, so only keys without another writer are applied: annotations, which are a map and have an owner a
key. The list of attributes has one owner as a whole, hence ``koord-numa/kubelet-options``. Whose zones they are is looked up before
the first write, again now and then, and after every conflict.

Nothing is sent while nothing changed; writes are at least ``MIN_INTERVAL`` apart and back off after a failure.
"""

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from time import monotonic
from typing import Any, Final

import orjson

from koord_numa.node.inputs.api_client import ApiError, NodeApi
from koord_numa.node.topology_object import CpuOwner, Json, NodeFacts, annotations, attributes, topology_object
from koord_numa.wire import names

logger = logging.getLogger(__name__)

FIELD_MANAGER: Final = "koord-numa-node-agent"
MIN_INTERVAL: Final = 0.5
"""Seconds between two writes. A change during this time is published at its end, within a second of the change."""
LOOK_INTERVAL: Final = 30.0
"""Seconds after which the object is read again: it may have been deleted, or have another publisher by now."""
LONGEST_PAUSE: Final = 60.0

PATH: Final = f"/apis/{names.TOPOLOGY_GROUP}/{names.TOPOLOGY_VERSIONS[-1]}/{names.TOPOLOGY_PLURAL}"
_KOORDINATOR: Final = (
    names.CPU_TOPOLOGY,
    names.CPU_SHARED_POOLS,
    names.BE_CPU_SHARED_POOLS,
    names.POD_CPU_ALLOCS,
    names.RESERVATION,
    names.CPU_MANAGER_POLICY,
)


class Publish(Enum):
    """How much is published: what others do not publish, everything, or never more than options."""

    AUTO = "auto"
    ALL = "all"
    OPTIONS = "options"


class Publisher:
    """Keeps one node's object equal to the facts. ``write`` is called as often as the facts may have changed."""

    def __init__(self, api: NodeApi, node: str, publish: Publish, clock: Callable[[], float] = monotonic) -> None:
        self._api = api
        self._path = f"{PATH}/{node}"
        self._publish = publish
        self._clock = clock
        self._sent: Json | None = None
        self._told: tuple[NodeFacts, Mapping[str, Mapping[str, str]]] | None = (
            None  # what the object that was sent was made of
        )
        self._seen: Json | None = None
        self._looked = self._not_before = float("-inf")
        self._failures = 0
        self.writes = 0

    @property
    def is_koordinator(self) -> bool:
        """Has koordlet marked the object as its own?"""
        labels = ((self._seen or {}).get("metadata") or {}).get("labels") or {}
        return bool(labels.get(names.MANAGED_BY) == names.MANAGED_BY_KOORDINATOR)

    @property
    def is_current(self) -> bool:
        """Was the last attempt to write successful?"""
        return self._sent is not None and not self._failures

    def ready_in(self) -> float:
        """Seconds until the next write is allowed; 0 when it is."""
        return max(0.0, self._not_before - self._clock())

    async def write(self, facts: NodeFacts, differences: Mapping[str, Mapping[str, str]]) -> bool:
        """
        Apply what changed; returns whether something was sent. An error of the API server is logged and tried again later.
        """
        now = self._clock()
        if now < self._not_before:
            return False
        try:
            # Before the comparison: an object that was deleted does not show in the facts.
            if now - self._looked >= LOOK_INTERVAL:
                await self._look(now)
            # The facts are compared first, because building the object costs far more than comparing what it is built from.
            if self._sent is not None and self._told == (facts, differences):
                return False
            obj = self._wanted(facts, differences)
            if obj is None or obj == self._sent:
                return False
            # Set before the request, so that one that fails half-way is not repeated at once.
            self._not_before = now + MIN_INTERVAL
            self._seen = await self._api.apply(self._path, obj, FIELD_MANAGER)
        except ApiError as error:
            self._failed(error, now)
            return False
        self._sent, self._told, self._failures = obj, (facts, differences), 0
        self.writes += 1
        return True

    async def _look(self, now: float) -> None:
        self._seen = await self._api.get(self._path)
        self._looked = now
        if self._seen is None or not applied_by_us(self._seen):
            self._sent = None  # deleted, or never written

    def _failed(self, error: ApiError, now: float) -> None:
        if error.status == 409:
            self._looked = float("-inf")  # another manager owns a field by now: read which
        self._failures += 1
        # the exponent is bounded, as 2**failures would grow without end
        self._not_before = now + min(LONGEST_PAUSE, MIN_INTERVAL * 2 ** min(self._failures, 10))
        logger.warning("the topology is not published: %s", error)

    def _wanted(self, facts: NodeFacts, differences: Mapping[str, Mapping[str, str]]) -> Json | None:
        """What to apply; ``None`` while only options are to be published and there is no object to add them to."""
        # OPTIONS is the operator's word that zones are another's even while there are none yet.
        foreign = self._publish is Publish.OPTIONS or (self._publish is Publish.AUTO and others_publish(self._seen))
        if foreign and self._seen is None:
            return None
        obj = additions(facts, self._seen or {}) if foreign else topology_object(facts)
        # An empty map is left out, and server-side apply then removes the key that we owned.
        if differences:
            obj["metadata"]["annotations"][names.CPUSET_DIFFERENCES] = orjson.dumps(dict(differences)).decode()
        return obj


def additions(facts: NodeFacts, seen: Json) -> Json:
    """The annotations that complete an object of another publisher."""
    found = annotations(facts)
    theirs = (seen.get("metadata") or {}).get("annotations") or {}
    ours = _our_annotations(seen)
    # One foreign key of Koordinator's is enough: koordlet writes them as a set, and two writers would disagree among them.
    if facts.owner is CpuOwner.KUBELET or any(key in theirs and key not in ours for key in _KOORDINATOR):
        found = {key: text for key, text in found.items() if key not in _KOORDINATOR}  # koordlet's, or without an owner
    if options := dict(attributes(facts)):
        # A fingerprint is a statement about the zones, and those are not ours.
        for name in (names.ATTRIBUTE_FINGERPRINT, names.ATTRIBUTE_FINGERPRINT_METHOD):
            options.pop(name, None)
        found[names.KUBELET_OPTIONS] = orjson.dumps(options).decode()
    return {
        # The newest version is written; the API server converts for readers of older ones.
        "apiVersion": f"{names.TOPOLOGY_GROUP}/{names.TOPOLOGY_VERSIONS[-1]}",
        "kind": names.TOPOLOGY_KIND,
        "metadata": {"name": facts.name, "annotations": found},
    }


def others_publish(seen: Json | None) -> bool:
    """Do the object's zones belong to another manager? So where we do not own them, or another one does as well."""
    if seen is None or not seen.get("zones"):
        return False
    owners = {
        str(entry.get("manager"))
        for entry in (seen.get("metadata") or {}).get("managedFields") or ()
        if "f:zones" in (entry.get("fieldsV1") or {})
    }
    # Zones without any owner (from before managedFields) count as another's: better to write too little.
    return owners != {FIELD_MANAGER}


def applied_by_us(seen: Json) -> bool:
    """Does the object still show anything that we applied?"""
    entries = (seen.get("metadata") or {}).get("managedFields") or ()
    return any(entry.get("manager") == FIELD_MANAGER for entry in entries)


def _our_annotations(seen: Json) -> set[str]:
    found: set[str] = set()
    for entry in (seen.get("metadata") or {}).get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER:
            fields: Any = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {}
            # Keys are `f:<annotation>`, and `.` for the map itself, which matches no annotation.
            found |= {str(key).removeprefix("f:") for key in fields}
    return found
