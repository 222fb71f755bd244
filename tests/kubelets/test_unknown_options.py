"""Kubelet options that are not published: who may find out, what an operator may state instead, and what is never guessed."""

from typing import Any

import pytest

from koord_numa.core.cpus.kubelet_options import StatedOptions
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy, UnknownKubeletOptions
from koord_numa.core.scheduling.filters import decide
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from koord_numa.settings import SettingsError, load_settings
from koord_numa.wire import parse_pod
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import GIB, container

ODD: dict[str, Any] = {"containers": [container("app", 3, 1)]}
EVEN: dict[str, Any] = {"containers": [container("app", 2, 1)]}
STRICT = Profile(kubelet_options=UnknownKubeletOptions.STRICT)
ASSUME = Profile(kubelet_options=UnknownKubeletOptions.ASSUME)


def node(name: str = "n", *options: str, hidden: bool = True) -> NodeDescription:
    """Two NUMA nodes of four cores, single-numa-node."""
    config = KubeletConfig(
        topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
        cpu_policy="static",
        cpu_options=dict.fromkeys(options, True),
        memory_policy="None",
    )
    return NodeDescription(name, Shape(2, 1, 4, 2, 16 * GIB).build(), Style.KUBELET, config, hidden=hidden)


def test_one_pod_explores_and_the_first_answer_is_kept() -> None:
    life = NodeLife(node("n", "full-pcpus-only"))
    first = life.ask(ODD)
    assert isinstance(first, Placement)
    assert first.explores == ("full-pcpus-only",)
    life.place(ODD)
    second = life.ask(ODD)
    assert isinstance(second, Rejection)
    assert "another pod is finding out" in second.detail
    assert isinstance(life.ask(EVEN), Placement)
    life.settle()
    third = life.ask(ODD)
    assert isinstance(third, Rejection)
    assert "its kubelet refused a pod for its whole cores" in third.detail
    assert len(life.refusals) == 1


def test_a_pod_that_runs_shows_that_the_option_is_off() -> None:
    life = NodeLife(node())
    life.place(ODD)
    life.settle()
    answer = life.ask(ODD)
    assert isinstance(answer, Placement)
    assert not answer.explores


def test_a_bare_pod_waits_for_a_node_with_known_options() -> None:
    life = NodeLife(node(), owner=None)
    answer = life.ask(ODD)
    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.KUBELET_SMT
    assert "only pods that a controller replaces find out" in answer.detail
    life.place(EVEN)
    assert life.placed == 1


def test_nobody_explores_under_strict() -> None:
    answer = NodeLife(node(), STRICT).ask(ODD)
    assert isinstance(answer, Rejection)
    assert answer.detail.endswith("full-pcpus-only is not known, and the pod might be refused for it")


def test_a_known_node_precedes_a_node_to_explore() -> None:
    """The fuller node would win otherwise: pods are packed."""
    unknown, known = NodeLife(node("a")), NodeLife(node("b"))
    known.place(ODD)
    known.settle()
    unknown.place(EVEN)
    unknown.place(EVEN)
    unknown.settle()
    request = parse_pod(unknown.pod("question", ODD)).request
    seen = [one for life in (unknown, known) if (one := life.seen()) is not None]
    chosen = decide(scheduling_request(request, Profile()), seen, Profile())
    assert isinstance(chosen, Placement)
    assert (chosen.node, chosen.explores) == ("b", ())
    only = decide(scheduling_request(request, Profile()), seen[:1], Profile())
    assert isinstance(only, Placement)
    assert only.explores


@pytest.mark.parametrize(("stated", "placed"), [({}, True), ({"full-pcpus-only": True}, False)], ids=["off", "on"])
def test_stated_options_take_the_place_of_what_is_not_published(stated: dict[str, bool], placed: bool) -> None:
    life = NodeLife(node("n", *stated), ASSUME, stated=(StatedOptions({"kubernetes.io/os": "linux"}, stated),))
    answer = life.ask(ODD)
    assert isinstance(answer, Placement) is placed
    assert not isinstance(answer, Placement) or not answer.explores


def test_without_assumed_options_nothing_is_assumed() -> None:
    life = NodeLife(node(), ASSUME, stated=(StatedOptions({"pool": "other"}),))
    answer = life.ask(ODD)
    assert isinstance(answer, Rejection)
    assert "full-pcpus-only is not known" in answer.detail


def test_a_statement_stands_in_for_nothing_that_is_published() -> None:
    life = NodeLife(node("n", "full-pcpus-only", hidden=False), ASSUME, stated=(StatedOptions(),))
    assert isinstance(life.ask(ODD), Rejection)


def test_a_kubelet_that_contradicts_a_statement_is_believed() -> None:
    life = NodeLife(node("n", "full-pcpus-only"), ASSUME, stated=(StatedOptions(),))
    life.place(ODD)
    life.settle()
    assert [refusal.reason for refusal in life.refusals] == ["SMTAlignmentError"]
    assert isinstance(life.ask(ODD), Rejection)
    assert isinstance(life.ask(EVEN), Placement)


def test_settings_state_options_by_node_selector() -> None:
    text = """
    profiles: [{unknownKubeletOptions: Assume}]
    assumedKubeletOptions:
    - nodeSelector: {pool: fast}
      cpuManagerPolicyOptions: {full-pcpus-only: true}
    - topologyManagerPolicyOptions: {prefer-closest-numa-nodes: true}
    """
    assert load_settings(text).stated_kubelet_options == (
        StatedOptions({"pool": "fast"}, {"full-pcpus-only": True}),
        StatedOptions({}, {}, {"prefer-closest-numa-nodes": True}),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("profiles: [{unknownKubeletOptions: Assume}]", "is empty"),
        ("assumedKubeletOptions: [{nodeSelector: {}}]", "has no effect"),
        (
            "{profiles: [{unknownKubeletOptions: Assume}], assumedKubeletOptions: [{cpuManagerPolicyOptions: {fast: true}}]}",
            "fast is not a kubelet option",
        ),
    ],
    ids=["nothing stated", "not used", "no such option"],
)
def test_a_statement_that_means_nothing_is_a_mistake(text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        load_settings(text)


def publish(life: NodeLife, **attributes: str) -> None:
    """The exporter publishes these attributes as well from now on."""
    obj = life.agent.topology()
    obj["attributes"] += [{"name": name, "value": value} for name, value in attributes.items()]
    life.scans.append(obj)
    life.deliver()


@pytest.mark.parametrize(
    "attribute",
    [
        {"topologyManagerOptionPreferMoon": "true"},
        {"cpuManagerPolicyOptions": "full-pcpus-only=true,prefer-odd-cpus=true"},
    ],
    ids=["topology manager", "CPU manager"],
)
def test_an_option_of_a_later_kubelet_closes_the_node_to_pods(attribute: dict[str, str]) -> None:
    life = NodeLife(node())
    publish(life, **attribute)
    answer = life.ask(EVEN)
    assert isinstance(answer, Rejection)
    assert "what the kubelet option" in answer.detail
    small = container("app", 1, 1)
    small["resources"]["limits"]["cpu"] = "2"
    assert isinstance(life.ask({"containers": [small]}), Placement)


def test_an_option_about_the_order_of_numa_nodes_keeps_the_node_open() -> None:
    life = NodeLife(node())
    publish(life, topologyManagerOptionNumaAllocationStrategy="most-allocated")
    assert isinstance(life.ask(EVEN), Placement)


def test_an_unknown_option_that_is_off_changes_nothing() -> None:
    life = NodeLife(node())
    publish(life, topologyManagerOptionPreferMoon="false")
    assert isinstance(life.ask(EVEN), Placement)


def test_an_unreadable_topology_takes_no_alignable_pod() -> None:
    life = NodeLife(node())
    obj = life.agent.topology()
    obj["topologyPolicies"] = ["dynamic"]
    life.scans.append(obj)
    life.deliver()
    burst = container("app", 1, 1)
    burst["resources"]["limits"]["cpu"] = "2"
    plain = life.ask({"containers": [burst]})
    assert isinstance(plain, Placement)
    burst["resources"]["limits"]["vendor.example/gpu"] = "1"
    for spec in (EVEN, {"containers": [burst]}):
        assert isinstance(life.ask(spec), Rejection)


def test_memory_without_a_memory_manager_is_not_bound() -> None:
    """Neither while the node is followed nor later: a second pod that is larger than what one NUMA node lists as available fits."""
    config = replace(node().kubelet, topology_policy=KubeletPolicy.NONE, memory_policy="None")
    description = NodeDescription("n", Shape(2, 1, 4, 2, 16 * GIB).build(), Style.KUBELET, config)
    for followed in (True, False):
        life = NodeLife(description)
        if not followed:
            life.cache = Cache(lambda *_: None)
            life.tell_node()
        obj = life.agent.topology()
        for zone in obj["zones"]:
            free = "16Gi" if followed else "1Gi"
            zone["resources"].append({"name": "memory", "capacity": "16Gi", "allocatable": "16Gi", "available": free})
        life.scans.append(obj)
        life.deliver()
        assert isinstance(life.ask({"containers": [container("app", 2, 12)]}), Placement)
        life.place({"containers": [container("app", 2, 12)]})
        assert isinstance(life.ask({"containers": [container("app", 2, 12)]}), Placement)
