"""
The scheduler's configuration: one frozen, validated object, read from a ``KoordNumaConfiguration`` in YAML.

Nothing here decides; a mistake is a ``SettingsError`` whose message names the path inside the document.
"""

from datetime import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    NodeScoring,
    NumaExclusive,
    NumaPolicy,
    RestrictedRule,
    ScoringType,
    UnknownKubeletOptions,
)
from koord_numa.core.quantity import supply
from koord_numa.core.resources import CPU, MEMORY

API_VERSION: Final = "koord-numa.io/v1alpha1"
KIND: Final = "KoordNumaConfiguration"
DEFAULT_SCHEDULER: Final = "koord-numa"
_SPAN: Final = r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$"
MAX_MESSAGES: Final = 5
"""So many mistakes are named at once; the rest are counted."""


class SettingsError(ValueError):
    """The configuration cannot be used; the message says where and why."""


class PodSource(StrEnum):
    """Who watches pods that wait for a node: Kopf's handlers, or an informer of our own at about half the CPU per pod."""

    KOPF = "Kopf"
    INFORMER = "Informer"


class RepairDoubleHolds(StrEnum):
    """What becomes of the younger of two pods that hold the same CPUs: it is reported, gets other CPUs, or is evicted."""

    OFF = "Off"
    REBIND = "Rebind"
    EVICT = "Evict"


class RebindMode(StrEnum):
    """What becomes of a node that a rebind would improve: nothing, a dry run with the plan in its status, or a rebind."""

    OFF = "Off"
    PROPOSE = "Propose"
    CREATE = "Create"


class NodesWithoutTopology(StrEnum):
    """May a pod that needs alignment go where no topology is published?"""

    REFUSE = "Refuse"
    PERMISSIVE = "Permissive"


class _Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, use_enum_values=False
    )


class ResourceWeight(_Section):
    """How much one resource counts in a score: 1 to 100, as in kube-scheduler's ``NodeResourcesFitArgs``."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[int, Field(ge=1, le=100)] = 1


class ScoringStrategy(_Section):
    """How amounts turn into a score."""

    type: ScoringType
    resources: tuple[ResourceWeight, ...] = (ResourceWeight(name=CPU), ResourceWeight(name=MEMORY))

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [resource.name for resource in self.resources]
        if len(set(names)) != len(names):
            raise ValueError("a resource is weighted twice")
        if not names:
            raise ValueError("at least one resource must be weighted")
        return self


Weight = Annotated[int, Field(ge=0, le=100)]


class ScoreWeightSettings(_Section):
    """How much each part of a node's score counts; 0 leaves it out. Every part is 0 to 100 before it is weighted."""

    resources: Weight = 1
    devices: Weight = 5
    numa: Weight = 1
    exclusivity: Weight = 40
    node_affinity: Weight = 20
    taints: Weight = 30
    pod_affinity: Weight = 20
    spread: Weight = 20


class ProfileSettings(_Section):
    """What one scheduler name means: pods that ask for it are decided by these rules."""

    scheduler_name: Annotated[str, Field(min_length=1, max_length=253)] = DEFAULT_SCHEDULER
    default_cpu_bind_policy: Annotated[CpuBindPolicy, Field(alias="defaultCPUBindPolicy")] = CpuBindPolicy.FULL_PCPUS
    default_numa_policy: Annotated[NumaPolicy, Field(alias="defaultNUMAAlignmentPolicy")] = NumaPolicy.BEST_EFFORT
    scoring_strategy: ScoringStrategy = ScoringStrategy(type=ScoringType.MOST_ALLOCATED)
    node_scoring: NodeScoring = NodeScoring.FEWEST_NUMA_NODES
    numa_scoring_strategy: Annotated[ScoringStrategy, Field(alias="numaScoringStrategy")] = ScoringStrategy(
        type=ScoringType.MOST_ALLOCATED
    )
    single_numa_node_exclusive: Annotated[NumaExclusive, Field(alias="singleNUMANodeExclusive")] = (
        NumaExclusive.REQUIRED
    )
    restricted_policy: RestrictedRule = RestrictedRule.EMPTY_NODE
    nodes_without_topology: NodesWithoutTopology = NodesWithoutTopology.REFUSE
    unknown_kubelet_options: UnknownKubeletOptions = UnknownKubeletOptions.EXPLORE
    score_weights: ScoreWeightSettings = ScoreWeightSettings()

    @model_validator(mode="after")
    def _values_make_sense(self) -> Self:
        if self.default_cpu_bind_policy not in (
            CpuBindPolicy.NONE,
            CpuBindPolicy.FULL_PCPUS,
            CpuBindPolicy.SPREAD_BY_PCPUS,
        ):
            raise ValueError("defaultCPUBindPolicy must be FullPCPUs, SpreadByPCPUs or empty")
        if self.numa_scoring_strategy.type is ScoringType.LEAST_NUMA_NODES:
            raise ValueError(
                "numaScoringStrategy compares NUMA nodes one by one, so LeastNUMANodes means nothing there"
            )
        return self


class BackoffSettings(_Section):
    """Waiting times in seconds: they double from ``initial`` to ``max``, each shortened at random by up to ``jitter`` of itself."""

    initial: Annotated[float, Field(gt=0, le=60)] = 1.0
    max: Annotated[float, Field(gt=0, le=3600)] = 10.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.2

    @model_validator(mode="after")
    def _max_is_larger(self) -> Self:
        if self.max < self.initial:
            raise ValueError("max is smaller than initial")
        return self

    def pause(self, attempt: int, dice: float) -> float:
        """
        Seconds to wait after ``attempt`` failures in a row; the one place where pauses are computed.

        ``dice`` in [0, 1) keeps many clients of a server that comes back from asking in the same moment.
        """
        return min(self.max, self.initial * 2.0 ** min(attempt - 1, 32)) * (1.0 - self.jitter * dice)


class LeaseSettings(_Section):
    """Leader election, in seconds, with client-go's defaults. All schedulers of one name must use the same Lease."""

    name: Annotated[str, Field(min_length=1)] = DEFAULT_SCHEDULER
    namespace: Annotated[str, Field(min_length=1)] = "koord-numa"
    duration: Annotated[float, Field(gt=0)] = 15.0
    renew: Annotated[float, Field(gt=0)] = 10.0
    retry: Annotated[float, Field(gt=0)] = 2.0

    @model_validator(mode="after")
    def _times_nest(self) -> Self:
        if not self.retry < self.renew < self.duration:
            raise ValueError("must hold: retry < renew < duration")
        return self


class EventSettings(_Section):
    """
    Events a second for ever, and at once; and how many may wait for that, of warnings and of others each. What comes on top is
    dropped and counted. kube-scheduler allows 50 a second, 100 at once, and lets 1,000 wait.
    """

    rate: Annotated[float, Field(gt=0, le=10_000)] = 100.0
    burst: Annotated[int, Field(ge=1, le=10_000)] = 200
    queue: Annotated[int, Field(ge=1, le=100_000)] = 1_000


class Budgets(StrEnum):
    """What preemption may do when nothing helps but evictions that a PodDisruptionBudget forbids."""

    KEEP = "Keep"
    BREAK_FOR_SYSTEM_CRITICAL = "BreakForSystemCritical"
    LIKE_KUBE_SCHEDULER = "LikeKubeScheduler"


class PreemptionSettings(_Section):
    """
    May pods of lower priority be evicted? ``candidate_nodes`` is how many nodes are tried out for one pod, the emptiest first;
    ``topology_patience_seconds`` how long a freed node's new topology is waited for where a kubelet chooses CPUs.
    """

    enabled: bool = True
    budgets: Budgets = Budgets.BREAK_FOR_SYSTEM_CRITICAL
    candidate_nodes: Annotated[int, Field(ge=1, le=10_000)] = 100
    topology_patience_seconds: Annotated[float, Field(ge=0)] = 180.0


def _are_amounts(amounts: dict[str, str | int]) -> dict[str, str | int]:
    for name, text in amounts.items():
        if supply(name, text) < 0:
            raise ValueError(f"{name}: {text} is less than nothing")
    return amounts


def _off_is_a_word(value: object) -> object:
    """YAML 1.1 reads an unquoted ``Off`` as false."""
    return "Off" if value is False else value


class DynamicResources(StrEnum):
    """Whether pods may use ResourceClaims. ``Auto`` serves them where the cluster does (``resource.k8s.io/v1``)."""

    AUTO = "Auto"
    OFF = "Off"


class RebindPolicySettings(_Section):
    """
    Rebinds without being asked. A node qualifies when a waiting pod would fit afterwards, when it has at least ``min_crossings`` NUMA
    crossings less, or a largest free block of at least ``min_block`` CPUs more. ``quiet_hours`` are spans of the day in UTC such as
    ``08:00-18:00``, in which none is begun.
    """

    mode: Annotated[RebindMode, BeforeValidator(_off_is_a_word)] = RebindMode.OFF
    interval_seconds: Annotated[float, Field(ge=1, le=86_400)] = 60.0
    max_per_hour: Annotated[int, Field(ge=1, le=1000)] = 6
    min_crossings: Annotated[int, Field(ge=1)] = 1
    min_block: Annotated[int, Field(ge=1)] = 4
    quiet_hours: tuple[Annotated[str, Field(pattern=_SPAN)], ...] = ()

    def is_quiet(self, now: time) -> bool:
        """May nothing be begun at this time of day (UTC)? A span may run over midnight."""
        for span in self.quiet_hours:
            start, end = (time.fromisoformat(part) for part in span.split("-"))
            if start <= now < end or (start > end and not end <= now < start):
                return True
        return False


class Settings(_Section):
    """Everything that can be configured, with the defaults that hold without a configuration."""

    api_version: Literal["koord-numa.io/v1alpha1"] = API_VERSION
    kind: Literal["KoordNumaConfiguration"] = KIND
    profiles: Annotated[tuple[ProfileSettings, ...], Field(min_length=1)] = (ProfileSettings(),)
    pod_source: PodSource = PodSource.KOPF
    headroom: Annotated[dict[str, str | int], AfterValidator(_are_amounts)] = {}
    repair_double_holds: Annotated[RepairDoubleHolds, BeforeValidator(_off_is_a_word)] = RepairDoubleHolds.OFF
    rebind_policy: RebindPolicySettings = RebindPolicySettings()
    backoff: BackoffSettings = BackoffSettings()
    api_backoff: Annotated[BackoffSettings, Field(alias="apiBackoff")] = BackoffSettings(initial=0.1, max=5.0)
    wake_pause: BackoffSettings = BackoffSettings(initial=0.05, max=2.0)
    bind_concurrency: Annotated[int, Field(ge=1, le=1000)] = 32
    parked_retry_seconds: Annotated[float, Field(gt=0)] = 300.0
    settle_seconds: Annotated[float, Field(gt=0)] = 5.0
    volume_bind_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    cool_down: BackoffSettings = BackoffSettings(initial=30.0, max=600.0)
    remembered_classes: Annotated[int, Field(ge=1)] = 256
    preemption: PreemptionSettings = PreemptionSettings()
    dynamic_resources: Annotated[DynamicResources, BeforeValidator(_off_is_a_word)] = DynamicResources.AUTO
    lease: LeaseSettings = LeaseSettings()
    events: EventSettings = EventSettings()

    @model_validator(mode="after")
    def _scheduler_names_are_unique(self) -> Self:
        names = self.scheduler_names
        if len(set(names)) != len(names):
            raise ValueError("two profiles have the same schedulerName")
        return self

    @property
    def headroom_amounts(self) -> dict[str, int]:
        """What is kept free on every node that is not dedicated: milli-CPU, bytes, pieces."""
        return {name: supply(name, text) for name, text in self.headroom.items()}

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """The scheduler names that pods may ask for, in the order of the profiles."""
        return tuple(profile.scheduler_name for profile in self.profiles)

    def profile(self, scheduler_name: str) -> ProfileSettings | None:
        """The rules for one scheduler name; ``None`` when that scheduler is not us."""
        return next((profile for profile in self.profiles if profile.scheduler_name == scheduler_name), None)


def load_settings(source: str | Path) -> Settings:
    """
    Read a ``KoordNumaConfiguration``: a ``Path`` is a YAML file, a string its text. The empty document gives the defaults.

    Raises ``SettingsError`` naming the path inside the document; unknown keys are mistakes too.
    """
    where = str(source) if isinstance(source, Path) else KIND
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        document: Any = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{where}: is not YAML: {error}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise SettingsError(f"{where}: must be a mapping, found {type(document).__name__}")
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        raise SettingsError(f"{where}: {_sentences(error)}") from None


def _sentences(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    paths = [item["loc"] for item in errors]
    found = [
        f"{_path(item['loc']) or 'the document'}: {item['msg'].removeprefix('Value error, ')}"
        for item in errors
        # A list without its malformed items seems too short: what is inside it is the mistake.
        if not any(len(path) > len(item["loc"]) and path[: len(item["loc"])] == item["loc"] for path in paths)
    ]
    rest = len(found) - MAX_MESSAGES
    return "; ".join(found[:MAX_MESSAGES]) + (f"; and {rest} more" if rest > 0 else "")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
