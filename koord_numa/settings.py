"""The scheduler's configuration: one frozen, validated object, read from a ``KoordNumaConfiguration`` in YAML."""

from collections.abc import Callable, Iterator, Mapping
from datetime import time
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from koord_numa.core.claims.pools import Features
from koord_numa.core.fit.spread import SYSTEM_DEFAULTS
from koord_numa.core.kubelet.options import CPU_OPTIONS, TOPOLOGY_OPTIONS, StatedOptions
from koord_numa.core.objects.constraints import SpreadConstraint
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    NodeScoring,
    NumaExclusive,
    NumaPolicy,
    RestrictedRule,
    ScoringType,
    UnknownKubeletOptions,
)
from koord_numa.core.resources import CPU, MEMORY, supply
from koord_numa.core.spelling import closest
from koord_numa.wire.names import DEFAULT_SCHEDULER, LEASE_NAMESPACE


class Section(BaseModel):
    """A part of the configuration: unknown keys are mistakes, and keys are in camel case."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_enum_values=False,
        allow_inf_nan=False,  # YAML has both, and no time or rate is one
        defer_build=True,
    )


class DefaultingType(StrEnum):
    """Whose default spread constraints count: kube-scheduler's (soft, over hosts and zones), or those that are listed."""

    SYSTEM = "System"
    LIST = "List"


class WhenUnsatisfiable(StrEnum):
    """What a spread constraint does to a node on which it does not hold."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class NodeInclusionPolicy(StrEnum):
    """Whether a pod's node affinity, or the taints of nodes, exclude nodes from the counts of a spread constraint."""

    HONOR = "Honor"
    IGNORE = "Ignore"


class DefaultConstraint(Section):
    """A spread constraint for pods that name none. It has no selector: the pods of one workload are spread."""

    topology_key: Annotated[str, Field(min_length=1, max_length=317)]
    max_skew: Annotated[int, Field(ge=1, le=2**31 - 1)]
    when_unsatisfiable: WhenUnsatisfiable
    min_domains: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    node_affinity_policy: NodeInclusionPolicy = NodeInclusionPolicy.HONOR
    node_taints_policy: NodeInclusionPolicy = NodeInclusionPolicy.IGNORE

    @model_validator(mode="after")
    def _min_domains_make_sense(self) -> Self:
        if self.min_domains is not None and self.when_unsatisfiable is not WhenUnsatisfiable.DO_NOT_SCHEDULE:
            raise ValueError("minDomains means something for whenUnsatisfiable: DoNotSchedule only")
        return self

    @property
    def constraint(self) -> SpreadConstraint:
        """The same as the core knows it, without a selector yet."""
        return SpreadConstraint(
            self.topology_key,
            self.max_skew,
            hard=self.when_unsatisfiable is WhenUnsatisfiable.DO_NOT_SCHEDULE,
            selector=None,
            min_domains=self.min_domains or 1,
            honor_affinity=self.node_affinity_policy is NodeInclusionPolicy.HONOR,
            honor_taints=self.node_taints_policy is NodeInclusionPolicy.HONOR,
            default=True,
        )


class PodTopologySpreadSettings(Section):
    """Default spread constraints, as kube-scheduler's ``PodTopologySpreadArgs``: for pods that name none, by their workload."""

    defaulting_type: DefaultingType = DefaultingType.SYSTEM
    default_constraints: tuple[DefaultConstraint, ...] = ()

    @model_validator(mode="after")
    def _values_make_sense(self) -> Self:
        # As kube-scheduler's validation: what would be ignored is refused instead.
        if self.defaulting_type is DefaultingType.SYSTEM and self.default_constraints:
            raise ValueError("defaultConstraints count with defaultingType: List only")
        pairs = [(each.topology_key, each.when_unsatisfiable) for each in self.default_constraints]
        if len(set(pairs)) != len(pairs):
            raise ValueError("two defaultConstraints have the same topologyKey and whenUnsatisfiable")
        return self

    @property
    def constraints(self) -> tuple[SpreadConstraint, ...]:
        """The constraints that count, without selectors yet."""
        if self.defaulting_type is DefaultingType.SYSTEM:
            return SYSTEM_DEFAULTS
        return tuple(each.constraint for each in self.default_constraints)


_SPAN: Final = r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$"


class RebindMode(StrEnum):
    """What becomes of a node that a rebind would improve: nothing, a dry run with the plan in its status, or a rebind."""

    OFF = "Off"
    PROPOSE = "Propose"
    CREATE = "Create"


class NodesWithoutTopology(StrEnum):
    """Whether a pod that needs alignment may run on a node without a published topology."""

    REFUSE = "Refuse"
    PERMISSIVE = "Permissive"


class ResourceWeight(Section):
    """How much one resource counts in a score: 1 to 100, as in kube-scheduler's ``NodeResourcesFitArgs``."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[int, Field(ge=1, le=100)] = 1


class ScoringStrategy(Section):
    """How amounts turn into a score."""

    type: ScoringType = ScoringType.MOST_ALLOCATED  # as the CPU orchestration proposal says
    resources: tuple[ResourceWeight, ...] = (ResourceWeight(name=CPU), ResourceWeight(name=MEMORY))

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [resource.name for resource in self.resources]
        if len(set(names)) != len(names):
            raise ValueError("a resource is weighted twice")
        if not names:
            raise ValueError("at least one resource must be weighted")
        return self


def _known_options(names: frozenset[str]) -> Callable[[dict[str, bool]], dict[str, bool]]:
    def check(options: dict[str, bool]) -> dict[str, bool]:
        if unknown := sorted(options.keys() - names):
            raise ValueError(f"{unknown[0]} is no option of the kubelet; known are {', '.join(sorted(names))}")
        return options

    return check


Weight = Annotated[int, Field(ge=0, le=5_000)]


class ScoreWeightSettings(Section):
    """How much each part of a node's score counts; 0 leaves it out. Every part is 0 to 100 before it is weighted."""

    resources: Weight = 1
    devices: Weight = 5
    numa: Weight = 1
    alignment: Weight = 2_200
    shape: Weight = 11
    exclusivity: Weight = 40
    numa_spread: Weight = 24
    claims: Weight = 24
    partitions: Weight = 10
    node_affinity: Weight = 24
    taints: Weight = 36
    pod_affinity: Weight = 24
    spread: Weight = 24
    default_spread: Weight = 2
    images: Weight = 1


class FeatureGateSettings(Section):
    """
    Kubernetes' feature gates of dynamic resource allocation, as the cluster has them.

    Fields behind a gate that is off are refused or do nothing, as in kube-scheduler. ``DRADeviceBindingConditions`` stands for
    ``DRAResourceClaimDeviceStatus`` too.
    """

    admin_access: Annotated[bool, Field(alias="DRAAdminAccess")] = True
    consumable_capacity: Annotated[bool, Field(alias="DRAConsumableCapacity")] = True
    binding_conditions: Annotated[bool, Field(alias="DRADeviceBindingConditions")] = True
    device_taints: Annotated[bool, Field(alias="DRADeviceTaints")] = True
    extended_resource: Annotated[bool, Field(alias="DRAExtendedResource")] = True
    partitionable_devices: Annotated[bool, Field(alias="DRAPartitionableDevices")] = True
    prioritized_list: Annotated[bool, Field(alias="DRAPrioritizedList")] = True

    @property
    def features(self) -> Features:
        """The gates as the allocator reads them."""
        return Features(**self.model_dump())


class ProfileSettings(Section):
    """What one scheduler name means: pods that ask for it are decided by these rules."""

    scheduler_name: Annotated[str, Field(min_length=1, max_length=253)] = DEFAULT_SCHEDULER
    default_cpu_bind_policy: Annotated[CpuBindPolicy, Field(alias="defaultCPUBindPolicy")] = CpuBindPolicy.FULL_PCPUS
    default_numa_policy: Annotated[
        NumaPolicy,
        Field(
            alias="defaultNUMAAlignmentPolicy",
            # The name of the CPU orchestration proposal is accepted too.
            validation_alias=AliasChoices("defaultNUMAAlignmentPolicy", "numaTopologyAlignmentPolicy"),
        ),
    ] = NumaPolicy.BEST_EFFORT
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
    pod_topology_spread: PodTopologySpreadSettings = PodTopologySpreadSettings()

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


class AssumedKubeletOptions(Section):
    """
    What the kubelets of the nodes with all of these labels are configured with, where their exporters publish no options.

    Keys are the kubelet's own option names; options that are not named are off.
    """

    node_selector: dict[str, str] = Field(default_factory=dict)
    cpu_manager_policy_options: Annotated[dict[str, bool], AfterValidator(_known_options(CPU_OPTIONS))] = Field(
        default_factory=dict
    )
    topology_manager_policy_options: Annotated[dict[str, bool], AfterValidator(_known_options(TOPOLOGY_OPTIONS))] = (
        Field(default_factory=dict)
    )


class BackoffSettings(Section):
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


class LeaseSettings(Section):
    """Leader election, in seconds, with client-go's defaults. All schedulers of one name must use the same Lease."""

    name: Annotated[str, Field(min_length=1)] = DEFAULT_SCHEDULER
    namespace: Annotated[str, Field(min_length=1)] = LEASE_NAMESPACE
    duration: Annotated[float, Field(gt=0)] = 15.0
    renew: Annotated[float, Field(gt=0)] = 10.0
    retry: Annotated[float, Field(gt=0)] = 2.0

    @model_validator(mode="after")
    def _times_nest(self) -> Self:
        if not self.retry < self.renew < self.duration:
            raise ValueError("must hold: retry < renew < duration")
        return self


class EventSettings(Section):
    """
    Events a second for ever, and at once; and how many may wait for that, of warnings and of others each. What comes on top is
    dropped and counted. kube-scheduler allows 50 a second, 100 at once, and lets 1,000 wait. A pod is told once why it waits: the queue
    holds the warnings of a whole batch of pods.
    """

    rate: Annotated[float, Field(gt=0, le=10_000)] = 100.0
    burst: Annotated[int, Field(ge=1, le=10_000)] = 200
    queue: Annotated[int, Field(ge=1, le=100_000)] = 10_000


class Budgets(StrEnum):
    """What preemption may do when nothing helps but evictions that a PodDisruptionBudget forbids."""

    KEEP = "Keep"
    BREAK_FOR_SYSTEM_CRITICAL = "BreakForSystemCritical"
    LIKE_KUBE_SCHEDULER = "LikeKubeScheduler"


class PreemptionSettings(Section):
    """
    May pods of lower priority be evicted? ``candidate_nodes`` is how many nodes are tried out for one pod, the emptiest first;
    ``topology_patience_seconds`` how long a freed node's new topology is waited for where a kubelet chooses CPUs.
    """

    enabled: bool = True
    budgets: Budgets = Budgets.BREAK_FOR_SYSTEM_CRITICAL
    candidate_nodes: Annotated[int, Field(ge=1, le=10_000)] = 100
    topology_patience_seconds: Annotated[float, Field(ge=0)] = 180.0


def off_is_a_word(value: object) -> object:
    """YAML 1.1 reads an unquoted ``Off`` as false."""
    return "Off" if value is False else value


class PartialGangSettings(Section):
    """
    Gangs of which only some members were bound. ``evict`` evicts these members when the gang cannot be completed within ``after_seconds``.
    """

    evict: bool = False
    after_seconds: Annotated[float, Field(ge=1, le=86_400)] = 300.0


class DeviceMoveSettings(Section):
    """
    The report of moves that gather free devices. ``evict`` lets the scheduler evict the pod of a move while a waiting pod needs the block,
    at most ``max_per_hour`` times.
    """

    interval_seconds: Annotated[float, Field(ge=1, le=86_400)] = 60.0
    evict: bool = False
    max_per_hour: Annotated[int, Field(ge=1, le=1000)] = 6


class RebindPolicySettings(Section):
    """
    Rebinds without being asked. A node qualifies when a waiting pod would fit afterwards, when it has at least ``min_crossings`` NUMA
    crossings less, or a largest free block of at least ``min_block`` CPUs more. ``quiet_hours`` are spans of the day in UTC such as
    ``08:00-18:00``, in which none is begun.
    """

    mode: Annotated[RebindMode, BeforeValidator(off_is_a_word)] = RebindMode.OFF
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


# The scheduler's configuration: one frozen, validated object, read from a ``KoordNumaConfiguration`` in YAML.
#
# Nothing here decides; a mistake is a ``SettingsError`` whose message names the path inside the document.

API_VERSION: Final = "koord-numa.io/v1alpha1"
KIND: Final = "KoordNumaConfiguration"
MAX_MESSAGES: Final = 5
"""So many mistakes are named at once; the rest are counted."""

_WORDS: Final = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "extra_forbidden": "there is no such setting",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large",
    "int_type": "must be a whole number",
    "model_type": "must be a mapping",
    "string_too_short": "must not be empty",
    "string_type": "must be a string",
    "tuple_type": "must be a list",
}
"""Pydantic's types of mistakes in the words of YAML, where its own are those of Python; others keep its sentence."""


_UPSTREAM: Final = {
    "pluginConfig": "profiles",
    "leaderElection": "lease",
    "podInitialBackoffSeconds": "backoff.initial",
    "podMaxBackoffSeconds": "backoff.max",
    "defaultConstraints": "podTopologySpread",
    "numaTopologyPolicy": "profiles[].defaultNUMAAlignmentPolicy",
    "cpuBindPolicy": "profiles[].defaultCPUBindPolicy",
    "preferredCPUBindPolicy": "profiles[].defaultCPUBindPolicy",
}
"""Arguments of kube-scheduler and Koordinator whose name says nothing about ours."""


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


class KubeletReservedCpus(StrEnum):
    """Whether pods may be given the CPUs that the kubelet reserves, on nodes whose CPUs the scheduler owns."""

    KEPT = "Kept"  # as in Koordinator's code: they stay in the shared pool
    ALLOCATABLE = "Allocatable"  # as the fine-grained CPU orchestration proposal says


def _are_amounts(amounts: dict[str, str | int]) -> dict[str, str | int]:
    for name, text in amounts.items():
        if supply(name, text) < 0:
            raise ValueError(f"{name}: {text} is less than nothing")
    return amounts


class DynamicResources(StrEnum):
    """Whether pods may use ResourceClaims. ``Auto`` serves them where the cluster does (``resource.k8s.io/v1``)."""

    AUTO = "Auto"
    OFF = "Off"


class PodGroupSupport(StrEnum):
    """Whether pods may be members of groups. ``Auto`` reads the PodGroups that the cluster serves."""

    AUTO = "Auto"
    OFF = "Off"


class DeviceObjectSupport(StrEnum):
    """Whether Koordinator's Device objects are read, so that pods get devices by id. ``Auto`` reads them where the cluster serves them."""

    AUTO = "Auto"
    OFF = "Off"


class Settings(Section):
    """Everything that can be configured, with the defaults that hold without a configuration."""

    api_version: Literal["koord-numa.io/v1alpha1"] = API_VERSION
    kind: Literal["KoordNumaConfiguration"] = KIND
    profiles: Annotated[tuple[ProfileSettings, ...], Field(min_length=1)] = (ProfileSettings(),)
    pod_source: PodSource = PodSource.KOPF
    headroom: Annotated[dict[str, str | int], AfterValidator(_are_amounts)] = Field(default_factory=dict)
    repair_double_holds: Annotated[RepairDoubleHolds, BeforeValidator(off_is_a_word)] = RepairDoubleHolds.OFF
    assumed_kubelet_options: tuple[AssumedKubeletOptions, ...] = ()
    rebind_policy: RebindPolicySettings = RebindPolicySettings()
    device_moves: DeviceMoveSettings = DeviceMoveSettings()
    kubelet_reserved_cpus: Annotated[KubeletReservedCpus, Field(alias="kubeletReservedCPUs")] = KubeletReservedCpus.KEPT
    backoff: BackoffSettings = BackoffSettings()
    # The API server's failures are shorter than a pod's: a pod is retried when the cluster changes, a request by time alone.
    api_backoff: Annotated[BackoffSettings, Field(alias="apiBackoff")] = BackoffSettings(initial=0.1, max=5.0)
    wake_pause: BackoffSettings = BackoffSettings(initial=0.05, max=2.0)
    bind_concurrency: Annotated[int, Field(ge=1, le=1000)] = 32
    parked_retry_seconds: Annotated[float, Field(gt=0)] = 300.0
    settle_seconds: Annotated[float, Field(gt=0)] = 5.0
    volume_bind_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    cool_down: BackoffSettings = BackoffSettings(initial=30.0, max=600.0)
    remembered_classes: Annotated[int, Field(ge=1)] = 256
    preemption: PreemptionSettings = PreemptionSettings()
    dynamic_resources: Annotated[DynamicResources, BeforeValidator(off_is_a_word)] = DynamicResources.AUTO
    pod_groups: Annotated[PodGroupSupport, BeforeValidator(off_is_a_word)] = PodGroupSupport.AUTO
    partial_gangs: PartialGangSettings = PartialGangSettings()
    device_objects: Annotated[DeviceObjectSupport, BeforeValidator(off_is_a_word)] = DeviceObjectSupport.AUTO
    feature_gates: FeatureGateSettings = FeatureGateSettings()
    lease: LeaseSettings = LeaseSettings()
    events: EventSettings = EventSettings()

    @model_validator(mode="after")
    def _scheduler_names_are_unique(self) -> Self:
        # Two profiles of one name would leave it to their order which rules a pod gets.
        names = self.scheduler_names
        if len(set(names)) != len(names):
            raise ValueError("two profiles have the same schedulerName")
        return self

    @model_validator(mode="after")
    def _statements_are_used(self) -> Self:
        # Both halves or none: either one alone has no effect, and would look as if it had.
        assume = any(one.unknown_kubelet_options is UnknownKubeletOptions.ASSUME for one in self.profiles)
        if assume and not self.assumed_kubelet_options:
            raise ValueError("unknownKubeletOptions is Assume, and assumedKubeletOptions states nothing")
        if self.assumed_kubelet_options and not assume:
            raise ValueError("assumedKubeletOptions is used by no profile: none has unknownKubeletOptions: Assume")
        return self

    @property
    def stated_kubelet_options(self) -> tuple[StatedOptions, ...]:
        """What is stated of kubelets that publish no options, in the words of the core."""
        return tuple(
            StatedOptions(one.node_selector, one.cpu_manager_policy_options, one.topology_manager_policy_options)
            for one in self.assumed_kubelet_options
        )

    @property
    def headroom_amounts(self) -> dict[str, int]:
        """What is kept free on every node that is not dedicated: milli-CPU, bytes, pieces."""
        return {name: supply(name, text) for name, text in self.headroom.items()}

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """The scheduler names that pods may ask for, in the order of the profiles."""
        return tuple(profile.scheduler_name for profile in self.profiles)

    @property
    def needs_workloads(self) -> bool:
        """Can a default spread constraint refuse a node? Then no pod is placed before its workload can be known."""
        return any(each.hard for profile in self.profiles for each in profile.pod_topology_spread.constraints)

    def profile(self, scheduler_name: str) -> ProfileSettings | None:
        """Return the profile of a scheduler name, or ``None`` if this process does not serve it."""
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
    except RecursionError:
        raise SettingsError(f"{where}: is nested too deeply") from None
    if document is None:  # an empty file, or only comments
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
        f"{_path(item['loc']) or 'the document'}: {_WORDS.get(item['type']) or _plain(item['msg'])}{_pointer(item)}"
        for item in errors
        # A list without its malformed items seems too short: what is inside it is the mistake.
        if not any(len(path) > len(item["loc"]) and path[: len(item["loc"])] == item["loc"] for path in paths)
    ]
    rest = len(found) - MAX_MESSAGES
    return "; ".join(found[:MAX_MESSAGES]) + (f"; and {rest} more" if rest > 0 else "")


def _pointer(error: ErrorDetails) -> str:
    """Which setting is meant by a key that does not exist, if that can be told."""
    if error["type"] != "extra_forbidden":
        return ""
    *section, key = error["loc"]
    place = "".join("[]" if isinstance(step, int) else f".{step}" for step in section).removeprefix(".")
    known = _known_keys(Settings)
    meant = _UPSTREAM.get(str(key)) or known.get(closest(str(key), known), "")
    # Only a setting of another section needs its path.
    return f"; did you mean {meant.removeprefix(f'{place}.')}?" if meant else ""


@cache
def _known_keys(section: type[BaseModel], path: str = "") -> Mapping[str, str]:
    """Return the keys of a section and of its subsections, with their paths. ``[]`` stands for any entry of a list."""
    known: dict[str, str] = {}
    inner: dict[str, str] = {}
    for name, field in section.model_fields.items():
        key = field.alias or name
        known[key] = f"{path}{key}"
        is_list = get_origin(field.annotation) is tuple
        for part in _sections_in(field.annotation):
            inner = {**_known_keys(part, f"{path}{key}{'[]' if is_list else ''}."), **inner}
    return {**inner, **known}


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections_in(argument)


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ").replace("Input should be", "must be").replace("Tuple should", "must")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
