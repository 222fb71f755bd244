"""The choice among nodes: predicates in order, the best score, then the first name, and a reason for every node."""

import pytest

from koord_numa.core.objects.constraints import (
    Constraints,
    HostPort,
    NodeTerm,
    Operator,
    PreferredNodeTerm,
    Requirement,
    TaintEffect,
    Toleration,
)
from koord_numa.core.objects.node import Node, Taint
from koord_numa.core.objects.request import Container, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import ContainerKind, ScoringType
from koord_numa.core.scheduling.filters import ScoredPlacement, answers, decide
from koord_numa.core.scheduling.request import Profile, depends_on_other_pods, scheduling_request
from koord_numa.core.state.inventory import NodeSnapshot, candidate, inventory
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import replace
from koord_numa.settings import ScoreWeightSettings
from tests.tables import each_row

GIB = 1 << 30
PLAIN = Node("node", allocatable={"cpu": 8000, "memory": 32 * GIB, "pods": 10}, labels={"disk": "ssd"})


def seen(node: Node, *held: int, ports: tuple[HostPort, ...] = ()) -> NodeSnapshot:
    """A node without topology that holds pods of so many milli-CPUs."""
    offer = inventory(node, None)
    holdings = [Holding(PodKey("d", f"held-{i}", f"held-{i}"), {"cpu": cpu}) for i, cpu in enumerate(held)]
    return candidate(node, offer, Ledger.of(holdings), ports)


def asks(cpu: int = 1000, **demands: object) -> PodRequest:
    amounts = {"cpu": cpu, "memory": GIB}
    constraints = Constraints(**demands)  # type: ignore[arg-type]  # demands are named fields
    return PodRequest(containers=(Container("app", ContainerKind.APP, amounts),), constraints=constraints)


def chosen(request: PodRequest, *candidates: NodeSnapshot, scoring: ScoringType = ScoringType.MOST_ALLOCATED) -> str:
    rules = Profile(scoring=scoring)
    verdict = decide(scheduling_request(request, rules), candidates, rules)
    assert isinstance(verdict, Placement)
    return verdict.node


IN_SSD = NodeTerm(labels=(Requirement("disk", Operator.IN, ("ssd",)),))
TAINTED = replace(PLAIN, taints=(Taint("gpu", TaintEffect.NO_SCHEDULE, "yes"),))


@each_row(
    ("request_", "node", "reason"),
    [
        pytest.param(asks(), replace(PLAIN, problem="label x"), Reason.BAD_NODE, id="a malformed node"),
        pytest.param(asks(node_name="other"), PLAIN, Reason.NODE_NAME, id="another node is named"),
        pytest.param(asks(), replace(PLAIN, unschedulable=True), Reason.UNSCHEDULABLE, id="cordoned"),
        pytest.param(asks(), TAINTED, Reason.TAINT, id="tainted"),
        pytest.param(asks(node_selector=(("disk", "hdd"),)), PLAIN, Reason.NODE_AFFINITY, id="selector"),
        pytest.param(asks(node_terms=(NodeTerm(),)), PLAIN, Reason.NODE_AFFINITY, id="an empty term"),
        pytest.param(asks(host_ports=(HostPort(80),)), PLAIN, Reason.HOST_PORT, id="port taken"),
        pytest.param(asks(cpu=9000), PLAIN, Reason.RESOURCES, id="too large"),
        pytest.param(asks(cpu=4500), PLAIN, Reason.RESOURCES, id="too little left"),
    ],
)
def test_every_predicate_says_no_by_its_own_reason(request_: PodRequest, node: Node, reason: Reason) -> None:
    rules = Profile()
    verdict = decide(scheduling_request(request_, rules), [seen(node, 4000, ports=(HostPort(80),))], rules)
    assert isinstance(verdict, Unschedulable)
    assert {name: no.reason for name, no in verdict.rejections.items()} == {"node": reason}


@each_row(
    "request_",
    [
        asks(node_name="node"),
        asks(tolerations=(Toleration(exists=True),)),
        asks(node_selector=(("disk", "ssd"),), node_terms=(IN_SSD,)),
        asks(host_ports=(HostPort(81),)),
        asks(cpu=4000),
    ],
    ids=["named", "tolerates", "selected", "other port", "exactly what is left"],
)
def test_what_fits_is_taken(request_: PodRequest) -> None:
    assert chosen(request_, seen(PLAIN, 4000, ports=(HostPort(80),))) == "node"


def test_a_barred_node_says_why() -> None:
    why = Rejection(Reason.LOCKED, "locked", resolvable=False)
    rules = Profile()
    verdict = decide(scheduling_request(asks(), rules), [replace(seen(PLAIN), barred=why)], rules)
    assert verdict == Unschedulable({"node": why})


def test_strategies_choose_the_fuller_or_the_emptier_node() -> None:
    full, empty = seen(replace(PLAIN, name="full"), 4000), seen(replace(PLAIN, name="empty"))
    assert chosen(asks(), full, empty, scoring=ScoringType.MOST_ALLOCATED) == "full"
    assert chosen(asks(), full, empty, scoring=ScoringType.LEAST_ALLOCATED) == "empty"


def test_equal_nodes_go_by_name_whatever_their_order() -> None:
    nodes = [seen(replace(PLAIN, name=name)) for name in ("worker-2", "worker-10", "worker-1")]
    assert {chosen(asks(), *nodes[shift:], *nodes[:shift]) for shift in range(3)} == {"worker-1"}


def points(request: PodRequest, *nodes: NodeSnapshot) -> dict[str, dict[str, int]]:
    """By node and preference, what the node earns for the pod, of 100."""
    profile = Profile(score_weights=dict.fromkeys(ScoreWeightSettings.model_fields, 1))
    found = {}
    for name, answer in answers(scheduling_request(request, profile), nodes, profile).items():
        assert isinstance(answer, ScoredPlacement)
        assert answer.parts is not None
        found[name] = {part: answer.parts[part] for part in ("node_affinity", "taints")}
    return found


def test_preferences_compare_the_nodes_that_fit() -> None:
    in_zone = NodeTerm(labels=(Requirement("zone", Operator.EXISTS),))
    two = asks(preferred_nodes=(PreferredNodeTerm(1, IN_SSD), PreferredNodeTerm(2, in_zone)))
    soft = tuple(Taint(key, TaintEffect.PREFER_NO_SCHEDULE) for key in "ab")
    both = replace(PLAIN, name="both", labels={"disk": "ssd", "zone": "a"}, taints=soft[:1])
    full = replace(both, name="full", allocatable={"cpu": 100}, taints=())
    neither = replace(PLAIN, name="neither", labels={}, taints=soft)
    assert points(two, seen(PLAIN), seen(neither)) == {
        "node": {"node_affinity": 100, "taints": 100},
        "neither": {"node_affinity": 0, "taints": 0},
    }
    profile = Profile()
    answered = answers(scheduling_request(two, profile), [seen(PLAIN), seen(full)], profile)
    assert isinstance(answered["full"], Rejection)
    assert points(two, seen(PLAIN), seen(both), seen(neither)) == {
        "node": {"node_affinity": 33, "taints": 100},
        "both": {"node_affinity": 100, "taints": 50},
        "neither": {"node_affinity": 0, "taints": 0},
    }


def test_an_explicit_preference_outranks_the_filling_of_nodes() -> None:
    prefers = asks(preferred_nodes=(PreferredNodeTerm(1, NodeTerm(labels=(Requirement("zone", Operator.EXISTS),))),))
    empty = replace(PLAIN, name="empty", labels={"zone": "a"})
    assert chosen(prefers, seen(PLAIN, 4000), seen(empty)) == "empty"
    tainted = replace(PLAIN, taints=(Taint("a", TaintEffect.PREFER_NO_SCHEDULE),))
    assert chosen(asks(), seen(tainted, 4000), seen(replace(PLAIN, name="empty"))) == "empty"


def test_what_is_not_supported_is_refused_by_every_node() -> None:
    rules = Profile()
    verdict = decide(scheduling_request(asks(unsupported=("resourceClaims", "x")), rules), [seen(PLAIN)], rules)
    assert isinstance(verdict, Unschedulable)
    assert verdict.rejections["node"].message == "koord-numa does not support: resourceClaims; x"


def test_claims_of_unread_volumes_wait() -> None:
    rules = Profile()
    verdict = decide(scheduling_request(asks(claims=("data",)), rules), [seen(PLAIN)], rules)
    assert isinstance(verdict, Unschedulable)
    assert verdict.rejections["node"].reason is Reason.VOLUME


def test_only_pods_that_care_look_around() -> None:
    assert not depends_on_other_pods(asks(node_selector=(("disk", "ssd"),), host_ports=(HostPort(80),)))
    assert depends_on_other_pods(asks(claims=("data",)))
