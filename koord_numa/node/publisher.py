"""
Publish the NodeResourceTopology by server-side apply with a separate field manager, never against another publisher.

If NFD's topology updater, resource-topology-exporter or koordlet writes the zones, only annotations without another
writer are applied, since each key of the map has its own owner. The list of attributes has a single owner, hence
``koord-numa/kubelet-options``. The owner of the zones is read before the first write, periodically, and after every
conflict.

Nothing is sent without a change. Writes are at least ``MIN_INTERVAL`` apart and back off after a failure.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from time import monotonic
from typing import Any, Final

import orjson

from koord_numa.node.api_client import NodeApi, NodeApiError
from koord_numa.node.pods import KOORDLET_NAMESPACE
from koord_numa.node.published_objects import Json, NodeCpuOwner, NodeFacts, annotations, attributes, topology_object
from koord_numa.wire import names

logger = logging.getLogger(__name__)

FIELD_MANAGER: Final = "koord-numa-node-agent"
MIN_INTERVAL: Final = 0.5
"""Seconds between two writes. A change during this time is published at its end, within a second of the change."""
LOOK_INTERVAL: Final = 30.0
"""Seconds after which the object is read again: it may have been deleted, or have another publisher."""
LONGEST_PAUSE: Final = 60.0

PATH: Final = f"/apis/{names.TOPOLOGY_GROUP}/{names.TOPOLOGY_VERSIONS[-1]}/{names.TOPOLOGY_PLURAL}"
DEVICE_PATH: Final = f"/apis/{names.SCHEDULING_GROUP}/{names.DEVICE_VERSION}/{names.DEVICE_PLURAL}"
_KOORDINATOR: Final = (
    names.CPU_TOPOLOGY,
    names.CPU_SHARED_POOLS,
    names.BE_CPU_SHARED_POOLS,
    names.POD_CPU_ALLOCS,
    names.RESERVATION,
    names.CPU_MANAGER_POLICY,
)


class Publish(Enum):
    """The published parts: those that others do not publish, everything, or only the kubelet options."""

    AUTO = "auto"
    ALL = "all"
    OPTIONS = "options"


class _ObjectWriter:
    """Server-side apply of one object, with the time of the next write and the state of the object in the cluster."""

    what: str
    """Name of the object in logs."""

    def __init__(self, api: NodeApi, path: str, clock: Callable[[], float]) -> None:
        self._api = api
        self._path = path
        self._clock = clock
        self._sent: Json | None = None
        self._seen: Json | None = None
        self._looked = self._not_before = float("-inf")
        self._failures = 0
        self.writes = 0

    @property
    def is_current(self) -> bool:
        """Return whether the last write was successful."""
        return self._sent is not None and not self._failures

    @property
    def has_looked(self) -> bool:
        """Return whether the object was read, and no write conflicted since."""
        return self._looked > float("-inf")

    def ready_in(self) -> float:
        """Return the seconds until the next write is allowed, 0 if it is."""
        return max(0.0, self._not_before - self._clock())

    @property
    def _manager(self) -> str:
        """The value of the label that names the manager of the object, empty without one."""
        return str((((self._seen or {}).get("metadata") or {}).get("labels") or {}).get(names.MANAGED_BY, ""))

    async def _write(self, wanted: Callable[[], Json | None]) -> bool:
        """Apply the wanted object if it changed. Return whether it was sent. An error of the API server is logged and retried later."""
        now = self._clock()
        if now < self._not_before:
            return False
        try:
            # Read before the comparison: a deleted object does not change the facts.
            if now - self._looked >= LOOK_INTERVAL:
                self._seen = await self._api.get(self._path)
                self._looked = now
                if self._seen is None or not applied_by_us(self._seen):
                    self._sent = None  # deleted or never written
            obj = wanted()
            if obj is None or obj == self._sent:
                return False
            # Set before the request, so that a failing request is not repeated at once.
            self._not_before = now + MIN_INTERVAL
            self._seen = await self._api.apply(self._path, obj, FIELD_MANAGER)
        except NodeApiError as error:
            if error.status == 409:
                self._looked = float("-inf")  # another manager owns a field: read the object again
            self._failures += 1
            # The exponent is bounded, since 2**failures would grow without limit.
            self._not_before = now + min(LONGEST_PAUSE, MIN_INTERVAL * 2 ** min(self._failures, 10))
            logger.warning("%s is not published: %s", self.what, error)
            return False
        self._sent, self._failures = obj, 0
        self.writes += 1
        return True


class DevicePublisher(_ObjectWriter):
    """The publisher of a node's Device object. An object of another publisher, such as koordlet, is never changed."""

    what = "the Device object"

    def __init__(self, api: NodeApi, node: str, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(api, f"{DEVICE_PATH}/{node}", clock)

    async def write(self, obj: Json) -> bool:
        """Apply the object if it changed. Return whether it was sent."""
        return await self._write(
            lambda: obj if self._seen is None or self._manager == names.MANAGED_BY_KOORD_NUMA else None
        )


class Publisher(_ObjectWriter):
    """The publisher of a node's NodeResourceTopology. ``write`` is called whenever the facts may have changed."""

    what = "the topology"

    def __init__(self, api: NodeApi, node: str, publish: Publish, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(api, f"{PATH}/{node}", clock)
        self._publish = publish
        self._told: tuple[NodeFacts, Mapping[str, Mapping[str, str]]] | None = None  # the facts of the last sent object

    @property
    def is_koordinator(self) -> bool:
        """Return whether koordlet has labeled the object as its own."""
        return self._manager == names.MANAGED_BY_KOORDINATOR

    async def write(self, facts: NodeFacts, differences: Mapping[str, Mapping[str, str]]) -> bool:
        """Apply changes. Return whether an object was sent."""
        sent = await self._write(lambda: self._wanted(facts, differences))
        if sent:
            self._told = facts, differences
        return sent

    def _wanted(self, facts: NodeFacts, differences: Mapping[str, Mapping[str, str]]) -> Json | None:
        """Return the object to apply, ``None`` if nothing changed, or if only options may be published and there is no object yet."""
        # The facts are compared first, since building the object is much more expensive.
        if self._sent is not None and self._told == (facts, differences):
            return None
        # OPTIONS means that zones belong to another publisher, even before they exist.
        foreign = self._publish is Publish.OPTIONS or (self._publish is Publish.AUTO and others_publish(self._seen))
        if foreign and self._seen is None:
            return None
        obj = additions(facts, self._seen or {}) if foreign else topology_object(facts)
        # An empty map is omitted: server-side apply then removes the key if this manager owns it.
        if differences:
            obj["metadata"]["annotations"][names.CPUSET_DIFFERENCES] = orjson.dumps(dict(differences)).decode()
        return obj


def additions(facts: NodeFacts, seen: Json) -> Json:
    """Return the annotations that complete the object of another publisher."""
    found = annotations(facts)
    theirs = (seen.get("metadata") or {}).get("annotations") or {}
    ours = _our_annotations(seen)
    # One foreign key of Koordinator is enough: koordlet writes them as a set, and two writers would contradict each
    # other.
    if facts.owner is NodeCpuOwner.KUBELET or any(key in theirs and key not in ours for key in _KOORDINATOR):
        found = {
            key: text for key, text in found.items() if key not in _KOORDINATOR
        }  # owned by koordlet, or without an owner
    if options := dict(attributes(facts)):
        # A fingerprint describes the zones, which belong to another publisher here.
        for name in (names.ATTRIBUTE_FINGERPRINT, names.ATTRIBUTE_FINGERPRINT_METHOD):
            options.pop(name, None)
        found[names.KUBELET_OPTIONS] = orjson.dumps(options).decode()
    return {
        # The newest version is written. The API server converts it for readers of older versions.
        "apiVersion": f"{names.TOPOLOGY_GROUP}/{names.TOPOLOGY_VERSIONS[-1]}",
        "kind": names.TOPOLOGY_KIND,
        "metadata": {"name": facts.name, "annotations": found},
    }


def others_publish(seen: Json | None) -> bool:
    """Return whether another manager owns the zones of the object, alone or together with this one."""
    if seen is None or not seen.get("zones"):
        return False
    owners = {
        str(entry.get("manager"))
        for entry in (seen.get("metadata") or {}).get("managedFields") or ()
        if "f:zones" in (entry.get("fieldsV1") or {})
    }
    # Zones without an owner (from before managedFields) count as foreign, to be conservative.
    return owners != {FIELD_MANAGER}


def applied_by_us(seen: Json) -> bool:
    """Return whether the object contains a field applied by this agent."""
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


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """
    The configuration of the agent, with paths as seen in its container.

    ``cri_socket`` may be ``None`` with ``direct_writes``. ``nri_socket`` is used for ``apply`` whenever it exists.
    ``devices`` means that a Device object is published. ``root_dir`` is the kubelet's directory with its checkpoint
    files, ``None`` if they are not read. ``daemon_set`` (``namespace/name``) is the workload whose removal resets all
    containers to all CPUs. ``koordlet_namespace`` is the namespace in which a DaemonSet named koordlet owns the CPUs of
    its nodes. Interrupts are set in ``proc``, and ``run`` has the socket of irqbalance. ``state`` is a directory for
    the original affinities of interrupts, which a reboot empties, ``None`` if interrupts are not changed.
    """

    node: str
    sysfs: Path = Path("/sys")
    cgroups: Path = Path("/sys/fs/cgroup")
    kubelet_config: Path | None = None
    configz: bool = True
    podresources: Path | None = None
    root_dir: Path | None = None
    cri_socket: Path | None = None
    nri_socket: Path | None = None
    publish: Publish = Publish.AUTO
    owner: str = "auto"
    devices: bool = False
    apply: bool = False
    apply_memory: bool = False
    direct_writes: bool = False
    daemon_set: str = ""
    koordlet_namespace: str = KOORDLET_NAMESPACE
    proc: Path = Path("/proc")
    run: Path = Path("/run")
    state: Path | None = None
    metrics_port: int = 0
    metrics_tls: bool = False
    tls_cert_file: Path | None = None
    tls_private_key_file: Path | None = None
