"""Default topology spread constraints: the settings' form of kube-scheduler's ``PodTopologySpreadArgs``."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from koord_numa.core.fit.spread import SYSTEM_DEFAULTS
from koord_numa.core.objects.constraints import SpreadConstraint
from koord_numa.settings.section import Section


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
