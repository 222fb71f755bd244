"""The sections of the configuration, each a frozen, validated object with the defaults that hold without it."""

from collections.abc import Callable
from datetime import time
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from koord_numa.core.claims.pools import Features
from koord_numa.core.fit.spread import SYSTEM_DEFAULTS
from koord_numa.core.kubelet.options import CPU_OPTIONS, TOPOLOGY_OPTIONS
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
from koord_numa.core.resources import CPU, MEMORY
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
    """Do a pod's node affinity, or a node's taints, take nodes out of what a constraint counts?"""

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
    """May a pod that needs alignment go where no topology is published?"""

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
