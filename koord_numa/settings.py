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

from koord_numa.core.cpus.kubelet_options import CPU_OPTIONS, TOPOLOGY_OPTIONS, StatedOptions
from koord_numa.core.fit.pod_placement import SYSTEM_DEFAULTS
from koord_numa.core.objects.claims import Features
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
from koord_numa.wire import closest
from koord_numa.wire.names import DEFAULT_SCHEDULER, LEASE_NAMESPACE


class Section(BaseModel):
    """A part of the configuration. Keys are in camel case. Unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        use_enum_values=False,
        allow_inf_nan=False,  # YAML has both, but no duration or rate may be infinite
        defer_build=True,
    )


class DefaultingType(StrEnum):
    """Default spread constraints: kube-scheduler's (soft, over hosts and zones), or the listed constraints."""

    SYSTEM = "System"
    LIST = "List"


class WhenUnsatisfiable(StrEnum):
    """Effect of a violated spread constraint: reject the node, or lower its score."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class NodeInclusionPolicy(StrEnum):
    """Treatment of a pod's node affinity, or of taints, in the counts of a spread constraint: ``Honor`` excludes such nodes."""

    HONOR = "Honor"
    IGNORE = "Ignore"


class DefaultConstraint(Section):
    """A spread constraint for pods without constraints. It has no selector, because it selects the pods of the workload."""

    topology_key: Annotated[str, Field(min_length=1, max_length=317)]
    max_skew: Annotated[int, Field(ge=1, le=2**31 - 1)]
    when_unsatisfiable: WhenUnsatisfiable
    min_domains: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    node_affinity_policy: NodeInclusionPolicy = NodeInclusionPolicy.HONOR
    node_taints_policy: NodeInclusionPolicy = NodeInclusionPolicy.IGNORE

    @model_validator(mode="after")
    def _min_domains_make_sense(self) -> Self:
        if self.min_domains is not None and self.when_unsatisfiable is not WhenUnsatisfiable.DO_NOT_SCHEDULE:
            raise ValueError("minDomains needs whenUnsatisfiable: DoNotSchedule")
        return self

    @property
    def constraint(self) -> SpreadConstraint:
        """The constraint as a core value. The selector is added for each pod."""
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
    """Default spread constraints, as kube-scheduler's ``PodTopologySpreadArgs``."""

    defaulting_type: DefaultingType = DefaultingType.SYSTEM
    default_constraints: tuple[DefaultConstraint, ...] = ()

    @model_validator(mode="after")
    def _values_make_sense(self) -> Self:
        # As kube-scheduler's validation: settings without effect are errors.
        if self.defaulting_type is DefaultingType.SYSTEM and self.default_constraints:
            raise ValueError("defaultConstraints needs defaultingType: List")
        pairs = [(each.topology_key, each.when_unsatisfiable) for each in self.default_constraints]
        if len(set(pairs)) != len(pairs):
            raise ValueError("two defaultConstraints have the same topologyKey and whenUnsatisfiable")
        return self

    @property
    def constraints(self) -> tuple[SpreadConstraint, ...]:
        """The effective constraints as core values, without selectors."""
        if self.defaulting_type is DefaultingType.SYSTEM:
            return SYSTEM_DEFAULTS
        return tuple(each.constraint for each in self.default_constraints)


_SPAN: Final = r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$"


class RebindMode(StrEnum):
    """Action on a node that a rebind would improve: none, a dry run with the plan in its status, or a rebind."""

    OFF = "Off"
    PROPOSE = "Propose"
    CREATE = "Create"


class NodesWithoutTopology(StrEnum):
    """Treatment of nodes without a published topology: rejected or permitted for pods that need alignment."""

    REFUSE = "Refuse"
    PERMISSIVE = "Permissive"


class ResourceWeight(Section):
    """Weight of a resource in a score, as in kube-scheduler's ``NodeResourcesFitArgs``."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[int, Field(ge=1, le=100)] = 1


class ScoringStrategy(Section):
    """Formula of a score by amounts, and the weights of the resources."""

    type: ScoringType = ScoringType.MOST_ALLOCATED  # as in the CPU orchestration proposal
    resources: tuple[ResourceWeight, ...] = (ResourceWeight(name=CPU), ResourceWeight(name=MEMORY))

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [resource.name for resource in self.resources]
        if len(set(names)) != len(names):
            raise ValueError("a resource has two weights")
        if not names:
            raise ValueError("at least one resource must have a weight")
        return self


def _known_options(names: frozenset[str]) -> Callable[[dict[str, bool]], dict[str, bool]]:
    def check(options: dict[str, bool]) -> dict[str, bool]:
        if unknown := sorted(options.keys() - names):
            raise ValueError(f"{unknown[0]} is not a kubelet option; the options are {', '.join(sorted(names))}")
        return options

    return check


Weight = Annotated[int, Field(ge=0, le=5_000)]


class ScoreWeightSettings(Section):
    """Weights of the parts of a node's score. A part is 0 to 100 points before weighting. The weight 0 disables the part."""

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
    Feature gates of dynamic resource allocation in the cluster.

    Fields of a disabled gate are rejected or ignored, as in kube-scheduler. ``DRADeviceBindingConditions`` includes
    ``DRAResourceClaimDeviceStatus``.
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
        """Return the feature gates as a value of the core."""
        return Features(**self.model_dump())


class ProfileSettings(Section):
    """Rules for the pods with one scheduler name."""

    scheduler_name: Annotated[str, Field(min_length=1, max_length=253)] = DEFAULT_SCHEDULER
    default_cpu_bind_policy: Annotated[CpuBindPolicy, Field(alias="defaultCPUBindPolicy")] = CpuBindPolicy.FULL_PCPUS
    default_numa_policy: Annotated[
        NumaPolicy,
        Field(
            alias="defaultNUMAAlignmentPolicy",
            # The second name is used in the CPU orchestration proposal.
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
                "numaScoringStrategy.type: LeastNUMANodes is not possible, because NUMA nodes are scored one by one"
            )
        return self


class AssumedKubeletOptions(Section):
    """
    Assumed options of the kubelets of all nodes with these labels, if no options are published.

    Keys are the names of kubelet options. Other options are off.
    """

    node_selector: dict[str, str] = Field(default_factory=dict)
    cpu_manager_policy_options: Annotated[dict[str, bool], AfterValidator(_known_options(CPU_OPTIONS))] = Field(
        default_factory=dict
    )
    topology_manager_policy_options: Annotated[dict[str, bool], AfterValidator(_known_options(TOPOLOGY_OPTIONS))] = (
        Field(default_factory=dict)
    )


class BackoffSettings(Section):
    """Exponential back-off in seconds, doubled from ``initial`` to ``max``. ``jitter`` is the maximum random reduction as a fraction."""

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
        Return the seconds to wait after ``attempt`` failures in a row.

        ``dice`` is a random number in [0, 1). It keeps clients of a restarted server from sending requests at the same time.
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
    Rate limit of Kubernetes events: events per second, burst, and the length of the queues for warnings and for other events.

    Excess events are dropped and counted. kube-scheduler's limits are 50, 100 and 1,000. The queue is longer because an unschedulable
    pod has only one event, and a batch of pods must fit.
    """

    rate: Annotated[float, Field(gt=0, le=10_000)] = 100.0
    burst: Annotated[int, Field(ge=1, le=10_000)] = 200
    queue: Annotated[int, Field(ge=1, le=100_000)] = 10_000


class Budgets(StrEnum):
    """Treatment of PodDisruptionBudgets if only forbidden evictions make room."""

    KEEP = "Keep"
    BREAK_FOR_SYSTEM_CRITICAL = "BreakForSystemCritical"
    LIKE_KUBE_SCHEDULER = "LikeKubeScheduler"


class PreemptionSettings(Section):
    """
    Preemption. ``candidate_nodes`` is the maximum number of dry runs for a pod, on the emptiest nodes first.

    ``topology_patience_seconds`` is the maximum wait for a kubelet's topology that shows the departure of the victims.
    """

    enabled: bool = True
    budgets: Budgets = Budgets.BREAK_FOR_SYSTEM_CRITICAL
    candidate_nodes: Annotated[int, Field(ge=1, le=10_000)] = 100
    topology_patience_seconds: Annotated[float, Field(ge=0)] = 180.0


def off_is_a_word(value: object) -> object:
    """Return ``Off`` for false, because YAML 1.1 reads an unquoted ``Off`` as false."""
    return "Off" if value is False else value


class PartialGangSettings(Section):
    """
    Treatment of partially bound gangs. ``evict`` evicts the bound members if the gang is not completed within ``after_seconds``.
    """

    evict: bool = False
    after_seconds: Annotated[float, Field(ge=1, le=86_400)] = 300.0


class DeviceMoveSettings(Section):
    """
    Reports of moves that gather free devices. With ``evict``, the pod of a move is evicted if a waiting pod needs the block, at most
    ``max_per_hour`` times.
    """

    interval_seconds: Annotated[float, Field(ge=1, le=86_400)] = 60.0
    evict: bool = False
    max_per_hour: Annotated[int, Field(ge=1, le=1000)] = 6


class RebindPolicySettings(Section):
    """
    Automatic rebinds. A node qualifies if a waiting pod would fit after the rebind, or if the rebind removes ``min_crossings`` NUMA
    crossings or enlarges the largest free block by ``min_block`` CPUs. No rebind starts in ``quiet_hours``, spans of the day in UTC such as
    ``08:00-18:00``.
    """

    mode: Annotated[RebindMode, BeforeValidator(off_is_a_word)] = RebindMode.OFF
    interval_seconds: Annotated[float, Field(ge=1, le=86_400)] = 60.0
    max_per_hour: Annotated[int, Field(ge=1, le=1000)] = 6
    min_crossings: Annotated[int, Field(ge=1)] = 1
    min_block: Annotated[int, Field(ge=1)] = 4
    quiet_hours: tuple[Annotated[str, Field(pattern=_SPAN)], ...] = ()

    def is_quiet(self, now: time) -> bool:
        """Return whether no rebind may start at this time of day (UTC). A span may include midnight."""
        for span in self.quiet_hours:
            start, end = (time.fromisoformat(part) for part in span.split("-"))
            if start <= now < end or (start > end and not end <= now < start):
                return True
        return False


# The scheduler's configuration: one frozen, validated object, read from a ``KoordNumaConfiguration`` in YAML.
#
# An error is a ``SettingsError`` whose message names the path inside the document.

API_VERSION: Final = "koord-numa.io/v1alpha1"
KIND: Final = "KoordNumaConfiguration"
MAX_MESSAGES: Final = 5
"""Maximum number of errors in a message. Further errors are counted."""

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
"""Texts for pydantic's error types whose own texts use terms of Python instead of YAML."""


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
"""Settings by the name of the argument of kube-scheduler or Koordinator, where the names differ too much for a spelling suggestion."""


class SettingsError(ValueError):
    """The configuration is invalid. The message has the path and the reason."""


class PodSource(StrEnum):
    """Watch of unscheduled pods: Kopf's handlers, or an informer that needs about half the CPU time per pod."""

    KOPF = "Kopf"
    INFORMER = "Informer"


class RepairDoubleHolds(StrEnum):
    """Repair of two pods with the same CPUs: report only, give the younger pod other CPUs, or evict the younger pod."""

    OFF = "Off"
    REBIND = "Rebind"
    EVICT = "Evict"


class KubeletReservedCpus(StrEnum):
    """Use of kubelet-reserved CPUs on scheduler-owned nodes."""

    KEPT = "Kept"  # in the shared pool, as in Koordinator's code
    ALLOCATABLE = "Allocatable"  # for any cpuset, as in the fine-grained CPU orchestration proposal


def _are_amounts(amounts: dict[str, str | int]) -> dict[str, str | int]:
    for name, text in amounts.items():
        if supply(name, text) < 0:
            raise ValueError(f"{name}: {text} must not be negative")
    return amounts


class DynamicResources(StrEnum):
    """Support of ResourceClaims. ``Auto``: if the cluster serves ``resource.k8s.io/v1``."""

    AUTO = "Auto"
    OFF = "Off"


class PodGroupSupport(StrEnum):
    """Support of groups of pods. ``Auto``: PodGroups of the APIs that the cluster serves."""

    AUTO = "Auto"
    OFF = "Off"


class DeviceObjectSupport(StrEnum):
    """Support of devices by id. ``Auto``: if the cluster serves Koordinator's Device objects."""

    AUTO = "Auto"
    OFF = "Off"


class Settings(Section):
    """The whole configuration with its defaults."""

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
    # Shorter than ``backoff``: a pod is also retried after a change of the cluster, a request only after a time.
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
        # Otherwise the order of the profiles would decide which rules apply to a pod.
        names = self.scheduler_names
        if len(set(names)) != len(names):
            raise ValueError("two profiles have the same schedulerName")
        return self

    @model_validator(mode="after")
    def _statements_are_used(self) -> Self:
        # Each setting has an effect only together with the other.
        assume = any(one.unknown_kubelet_options is UnknownKubeletOptions.ASSUME for one in self.profiles)
        if assume and not self.assumed_kubelet_options:
            raise ValueError("unknownKubeletOptions is Assume, but assumedKubeletOptions is empty")
        if self.assumed_kubelet_options and not assume:
            raise ValueError("assumedKubeletOptions has no effect: no profile has unknownKubeletOptions: Assume")
        return self

    @property
    def stated_kubelet_options(self) -> tuple[StatedOptions, ...]:
        """Assumed options of kubelets that publish none, as core values."""
        return tuple(
            StatedOptions(one.node_selector, one.cpu_manager_policy_options, one.topology_manager_policy_options)
            for one in self.assumed_kubelet_options
        )

    @property
    def headroom_amounts(self) -> dict[str, int]:
        """Amounts that stay free on every node that is not dedicated, in milli-CPU, bytes or pieces."""
        return {name: supply(name, text) for name, text in self.headroom.items()}

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """The scheduler names in the order of the profiles."""
        return tuple(profile.scheduler_name for profile in self.profiles)

    @property
    def needs_workloads(self) -> bool:
        """True if a default spread constraint can reject a node. Pods are then placed only after workloads have been listed."""
        return any(each.hard for profile in self.profiles for each in profile.pod_topology_spread.constraints)

    def profile(self, scheduler_name: str) -> ProfileSettings | None:
        """Return the profile of a scheduler name, or ``None`` if this process does not serve it."""
        return next((profile for profile in self.profiles if profile.scheduler_name == scheduler_name), None)


def load_settings(source: str | Path) -> Settings:
    """
    Read a ``KoordNumaConfiguration`` from a YAML file (``Path``) or from YAML text. An empty document has the defaults.

    Raises ``SettingsError`` with the path inside the document, also for unknown keys.
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
        # Pydantic also reports a list as too short if its items are malformed: only the items are reported.
        if not any(len(path) > len(item["loc"]) and path[: len(item["loc"])] == item["loc"] for path in paths)
    ]
    rest = len(found) - MAX_MESSAGES
    return "; ".join(found[:MAX_MESSAGES]) + (f"; and {rest} more" if rest > 0 else "")


def _pointer(error: ErrorDetails) -> str:
    """Return a suggestion for an unknown key, or an empty text."""
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
