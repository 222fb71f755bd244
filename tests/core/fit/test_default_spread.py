"""Selectors of default spread constraints for the pods of a workload, as in kube-scheduler's ``DefaultSelector``."""

import pytest

from koord_numa.core.fit.pod_placement import SYSTEM_DEFAULTS, constraints_for, default_selector
from koord_numa.core.objects.constraints import (
    LabelSelector,
    Operator,
    Requirement,
    Workload,
    WorkloadKey,
    WorkloadKind,
)
from tests.tables import each_row


def needs(**labels: str) -> LabelSelector:
    return LabelSelector(tuple(Requirement(key, Operator.IN, (value,)) for key, value in sorted(labels.items())))


def made(kind: WorkloadKind, selector: LabelSelector | None) -> Workload:
    return Workload(WorkloadKey(kind, "default", "one"), selector)


def service(**labels: str) -> Workload:
    return made(WorkloadKind.SERVICE, needs(**labels))


@each_row(
    ("services", "controller", "expected"),
    [
        pytest.param([], None, None, id="nothing"),
        pytest.param([service(app="web")], None, needs(app="web"), id="a service"),
        pytest.param(
            [service(app="web"), service(tier="front")], None, needs(app="web", tier="front"), id="all services"
        ),
        pytest.param([], made(WorkloadKind.REPLICA_SET, needs(app="web")), needs(app="web"), id="a replica set"),
        pytest.param(
            [service(app="web")],
            made(WorkloadKind.STATEFUL_SET, needs(set="db")),
            needs(app="web", set="db"),
            id="a service and a stateful set",
        ),
        pytest.param(
            [service(app="web")],
            made(WorkloadKind.REPLICATION_CONTROLLER, needs(app="web", rc="old")),
            needs(app="web", rc="old"),
            id="a replication controller is merged",
        ),
        pytest.param([made(WorkloadKind.SERVICE, None)], None, None, id="a service without a selector"),
        pytest.param(
            [], made(WorkloadKind.REPLICA_SET, LabelSelector()), None, id="a replica set that selects everything"
        ),
    ],
)
def test_selectors(services: list[Workload], controller: Workload | None, expected: LabelSelector | None) -> None:
    assert default_selector(services, controller) == expected


def test_constraints_take_the_selector_of_the_workload() -> None:
    found = constraints_for(SYSTEM_DEFAULTS, needs(app="web"))
    assert [(each.topology_key, each.max_skew, each.hard) for each in found] == [
        ("kubernetes.io/hostname", 3, False),
        ("topology.kubernetes.io/zone", 5, False),
    ]
    assert {each.selector for each in found} == {needs(app="web")}
    assert constraints_for(SYSTEM_DEFAULTS, None) == ()
