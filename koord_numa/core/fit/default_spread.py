"""
Default topology spread constraints, for pods that name none (kube-scheduler's ``PodTopologySpreadArgs``).

They spread the pods of one workload: those that its Services and its controller select.
"""

from collections.abc import Iterable
from typing import Final

from koord_numa.core.objects.constraints import LabelSelector, SpreadConstraint
from koord_numa.core.objects.workloads import Workload, WorkloadKind
from koord_numa.core.value_objects import replace

SYSTEM_DEFAULTS: Final = (
    SpreadConstraint("kubernetes.io/hostname", 3, hard=False, selector=None, default=True, needs_label=False),
    SpreadConstraint("topology.kubernetes.io/zone", 5, hard=False, selector=None, default=True, needs_label=False),
)
"""``systemDefaultConstraints``: nodes without a zone are still compared by their hostname (``requireAllTopologies``)."""


def default_selector(services: Iterable[Workload], controller: Workload | None) -> LabelSelector | None:
    """
    The pods beside which a pod counts: those that have everything which its ``services`` and its ``controller`` select by.

    ``None`` when nothing is selected by. As ``helper/spread.go`` (``DefaultSelector``): the labels of Services, and of a
    ReplicationController on top of them, are merged key by key; a ReplicaSet's or StatefulSet's requirements come in addition.
    """
    merged = {need.key: need for each in services if each.selector for need in each.selector.requirements}
    more = () if controller is None or controller.selector is None else controller.selector.requirements
    if controller is not None and controller.key.kind is WorkloadKind.REPLICATION_CONTROLLER:
        # A ReplicationController's selector is a plain map and overwrites keys of Services, like theirs among one another.
        merged.update((need.key, need) for need in more)
        more = ()
    needs = {*merged.values(), *more}
    if not needs:
        return None
    # Sorted, so that the same workload gives an equal selector, which caches compare.
    return LabelSelector(tuple(sorted(needs, key=lambda need: (need.key, need.operator.value, need.values))))


def constraints_for(
    defaults: Iterable[SpreadConstraint], selector: LabelSelector | None
) -> tuple[SpreadConstraint, ...]:
    """The default constraints of a pod whose workload selects by this; none without a selector."""
    return () if selector is None else tuple(replace(each, selector=selector) for each in defaults)
