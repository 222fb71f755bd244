"""
Groups of pods that are placed together: one model for three dialects.

A *gang* is a set of pods with a minimal count: a PodGroup of ``scheduling.k8s.io``, a gang of Koordinator, or a PodGroup of
scheduler-plugins. A *group* is the unit of a decision: a gang, or the gangs of a gang group of Koordinator.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Final

from koord_numa.core.value_objects import ValueObject


class Dialect(StrEnum):
    """API that defines the objects and labels of a gang. The value is the name in messages."""

    KUBERNETES = "scheduling.k8s.io"
    KOORDINATOR = "scheduling.sigs.k8s.io"
    SCHEDULER_PLUGINS = "scheduling.x-k8s.io"


class MatchPolicy(Enum):
    """The members that count for the minimal count (Koordinator's ``match-policy``)."""

    ONLY_WAITING = "only-waiting"
    WAITING_AND_RUNNING = "waiting-and-running"
    ONCE_SATISFIED = "once-satisfied"


class GangMode(Enum):
    """
    Treatment of members that fit while others do not (Koordinator's ``mode``).

    Members are bound only if the whole group fits, and waiting members hold no resources. Both modes therefore have the same effect.
    """

    STRICT = "Strict"
    NON_STRICT = "NonStrict"


class GangKey(ValueObject, gc=False):
    """Key of a gang. Printed as ``namespace/name``."""

    dialect: Dialect
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class TopologyLevel(ValueObject, gc=False):
    """Topology constraint: all members run on nodes with an equal value of this label. A preference unless ``required``."""

    key: str
    required: bool = True


class GroupClaim(ValueObject, gc=False):
    """Claim of a PodGroup (KEP-5729): the name of an entry, and the ResourceClaim or the template that it references."""

    name: str
    claim: str = ""
    template: str = ""


class GangSpec(ValueObject):
    """
    Specification of a gang. ``basic`` gangs have no minimal count.

    ``group`` are the names (``namespace/name``) of the gangs of its gang group, empty without a gang group. ``problem`` is the reason why
    the gang cannot be placed. ``disrupted_together``: running members are evicted together (``disruptionMode: all``). ``preempts`` is
    false for ``preemptionPolicy: Never``. ``priority`` is the priority of the PodGroup, if set.
    """

    min_count: int = 1
    basic: bool = False
    match_policy: MatchPolicy = MatchPolicy.WAITING_AND_RUNNING
    mode: GangMode = GangMode.STRICT
    group: tuple[str, ...] = ()
    levels: tuple[TopologyLevel, ...] = ()
    problem: str = ""
    disrupted_together: bool = False
    preempts: bool = True
    priority: int | None = None
    claims: tuple[GroupClaim, ...] = ()


class GangRef(ValueObject):
    """
    Reference of a pod to its gang. ``spec`` is set if annotations of the pod define the gang; otherwise an object of the dialect does.

    ``problem`` is the reason why the pod cannot be placed.
    """

    key: GangKey
    spec: GangSpec | None = None
    problem: str = ""


class PodGroup(ValueObject):
    """
    PodGroup of any dialect. ``satisfied``: by its status, the group was scheduled once.

    ``claim_names`` are the claims that were created for its templates, by the name of the entry.
    """

    key: GangKey
    spec: GangSpec
    uid: str = ""
    resource_version: str = ""
    satisfied: bool = False
    claim_names: tuple[tuple[str, str], ...] = ()


class GroupStatus(ValueObject, gc=False):
    """Status of a PodGroup to be written. ``reason`` is ``Scheduled``, ``Unschedulable`` or ``SchedulerError``."""

    reason: str
    message: str
    scheduled: int = 0  # members with a node


class GangCounts(ValueObject, gc=False):
    """
    Number of members of a gang. ``waiting`` members have no node, ``scheduled`` members have a node or have completed.

    ``satisfied``: the gang had its minimal count at some time.
    """

    waiting: int = 0
    scheduled: int = 0
    satisfied: bool = False


def missing(spec: GangSpec, counts: GangCounts) -> int:
    """
    Return how many waiting members must be placed together so that the gang keeps its minimal count.

    A gang with some, but too few, scheduled members is completed under every policy: binds were interrupted, or members were lost.
    """
    if spec.basic:
        return 0
    if counts.scheduled < spec.min_count:
        once = spec.match_policy is MatchPolicy.ONCE_SATISFIED and counts.satisfied
        return 0 if once else spec.min_count - counts.scheduled
    return spec.min_count if spec.match_policy is MatchPolicy.ONLY_WAITING else 0


def wait_for_members(key: GangKey, spec: GangSpec, counts: GangCounts) -> str:
    """Return why no member may be tried yet; empty if the gang is complete (kube-scheduler's GangScheduling PreEnqueue)."""
    if missing(spec, counts) <= counts.waiting:
        return ""
    here = counts.waiting if spec.match_policy is MatchPolicy.ONLY_WAITING else counts.waiting + counts.scheduled
    return (
        f"waiting for minCount pods from a gang to appear in scheduling queue: "
        f"{here} of {spec.min_count} pods of {key} exist"
    )


def wait_for_object(key: GangKey) -> str:
    """Return the message for a pod whose PodGroup does not exist (kube-scheduler's GangScheduling PreEnqueue)."""
    return f'waiting for pod\'s pod group "{key.name}" to appear in scheduling queue'


MAX_GANGS: Final = 64
"""Maximum gangs of a gang group. Bounds the look-ups that the annotation of a pod can cause."""


def group_of(key: GangKey, specs: Mapping[GangKey, GangSpec]) -> tuple[tuple[GangKey, ...], str]:
    """
    Return the gangs that are decided on together with this gang, sorted, and why that is not possible (empty if it is).

    ``specs`` has the known gangs. All gangs of a gang group must list the same gangs.
    """
    spec = specs.get(key)
    if spec is None:
        return (key,), wait_for_object(key)
    if spec.problem:
        return (key,), spec.problem
    if not spec.group or spec.group == (str(key),):
        return (key,), ""
    if len(spec.group) > MAX_GANGS:
        return (key,), f"the gang group of {key} has {len(spec.group)} gangs; at most {MAX_GANGS} are supported"
    if str(key) not in spec.group:
        return (key,), f"the gang group of {key} does not contain {key} itself"
    keys = tuple(sorted((_named(key.dialect, name) for name in set(spec.group)), key=str))
    for other in keys:
        its = specs.get(other)
        if its is None:
            return keys, f"waiting for gang {other} of the gang group of {key} to appear in scheduling queue"
        if its.problem:
            return keys, f"gang {other} of the same gang group: {its.problem}"
        if set(its.group) != set(spec.group):
            return keys, f"gangs {key} and {other} name different gang groups"
    return keys, ""


def _named(dialect: Dialect, name: str) -> GangKey:
    namespace, _, own = name.partition("/")
    return GangKey(dialect, namespace, own)


def common_levels(specs: Iterable[GangSpec]) -> tuple[tuple[TopologyLevel, ...], str]:
    """Return the topology levels of a group, and the reason if its gangs have different levels (empty if they agree)."""
    found = {spec.levels for spec in specs}
    if len(found) > 1:
        return (), "the gangs of a gang group have different topology constraints"
    return (found.pop() if found else ()), ""
