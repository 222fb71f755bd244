"""The admission policy for authors of pods: a table of pods, evaluated by a CEL library, beside what the scheduler says of them."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord_numa.core.allocation.demand import AllocateOptions, demand_of
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.resources import amount
from koord_numa.wire.pods import parse_pod
from tests.deploy.test_manifests import CHART, rendered
from tests.tables import each_row

celpy = pytest.importorskip("celpy", reason="the CEL library is not installed on this platform")

COMPONENT = Path(__file__).parents[2] / "deploy" / "kustomize" / "components" / "pod-author-policy"
RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
Json = dict[str, Any]


FUNCTIONS = {
    "quantity": lambda text: celpy.celtypes.DoubleType(amount("cpu", str(text)) / 1000),  # our unit of CPU is milli
    "asApproximateFloat": lambda value: value,
    "compareTo": lambda one, other: celpy.celtypes.IntType((one > other) - (one < other)),
    "sum": lambda values: celpy.celtypes.IntType(sum(values)),
}


def of_authors(manifests: list[Json], kind: str) -> Json:
    """The manifest of this kind that belongs to the policy for authors."""
    return next(one for one in manifests if one["kind"] == kind and one["metadata"]["name"].endswith("-pod-authors"))


def policy() -> Json:
    """The policy of the kustomize component."""
    documents = list(yaml.safe_load_all((COMPONENT / "pod-author-policy.yaml").read_text()))
    return of_authors(documents, "ValidatingAdmissionPolicy")


def complaints(pod: Mapping[str, Any]) -> list[str]:
    """Return the messages of the validations that fail, as the API server would; none for pods of other schedulers."""
    spec = policy()["spec"]
    environment = celpy.Environment()
    activation: dict[str, Any] = {"object": celpy.json_to_cel(pod), "variables": celpy.celtypes.MapType({})}

    def evaluate(expression: str) -> Any:
        program = environment.program(environment.compile(expression), functions=FUNCTIONS)
        return program.evaluate(activation)

    if not all(evaluate(condition["expression"]) for condition in spec["matchConditions"]):
        return []
    for variable in spec["variables"]:
        activation["variables"][celpy.celtypes.StringType(variable["name"])] = evaluate(variable["expression"])
    return [each["message"] for each in spec["validations"] if not evaluate(each["expression"])]


def pod(
    qos: str = "LSR",
    *,
    requests: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """A pod of one container, as it is created."""
    resources: Json = {"requests": dict(requests or {"cpu": "2", "memory": "1Gi"})}
    if limits is not None:
        resources["limits"] = dict(limits)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "author",
            "uid": "u1",
            "namespace": "default",
            "labels": {"koordinator.sh/qosClass": qos, **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "schedulerName": "koord-numa",
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            **spec,
        },
    }


def sized(cpu: str) -> Json:
    """A container of so many CPUs."""
    return {"name": f"of-{cpu}", "image": "none", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}}


EQUAL, WHOLE, SPEC, NUMA = (
    "requests and limits of LSE and LSR pods must be equal",
    "LSE and LSR pods must request whole CPUs",
    f"annotation {RESOURCE_SPEC} must be a JSON object",
    f"annotation {NUMA_SPEC} must be a JSON object",
)

ACCEPTED: dict[str, Json] = {
    "equal requests and limits": pod(limits={"cpu": "2", "memory": "1Gi"}),
    "the same amount in two spellings": pod(requests={"cpu": "2000m"}, limits={"cpu": "2"}),
    "no limit": pod(),
    "a shared pod may burst": pod("LS", requests={"cpu": "500m"}, limits={"cpu": "2"}),
    "no class at all": pod("", requests={"cpu": "500m"}),
    "a batch pod has no exclusive CPUs": pod(
        requests={"cpu": "1500m"}, labels={"koordinator.sh/priority-class": "koord-batch"}
    ),
    "halves add up": pod(containers=[sized("500m"), sized("1500m")]),
    "ten tenths add up": pod(containers=[sized("100m") | {"name": f"c{i}"} for i in range(10)]),
    "a sidecar counts": pod(containers=[sized("1500m")], initContainers=[sized("500m") | {"restartPolicy": "Always"}]),
    "policies in any case": pod(annotations={RESOURCE_SPEC: '{"preferredcpubindpolicy": "fullpcpus"}'}),
    "null leaves the default": pod(annotations={RESOURCE_SPEC: '{"requiredCPUBindPolicy": null}'}),
    "a kubelet's word": pod(annotations={NUMA_SPEC: '{"numaTopologyPolicy": "single-numa-node"}'}),
    "the proposal's place": pod(
        annotations={RESOURCE_SPEC: '{"numaTopologyPolicy": "Restricted", "singleNUMANodeExclusive": "preferred"}'}
    ),
}
REFUSED: dict[str, tuple[Json, str]] = {
    "a CPU limit above the request": (pod(limits={"cpu": "4"}), EQUAL),
    "a memory limit above the request": (pod("LSE", limits={"memory": "2Gi"}), EQUAL),
    "half a CPU": (pod(requests={"cpu": "1500m"}), WHOLE),
    "half a CPU in a sidecar": (pod(initContainers=[sized("500m") | {"restartPolicy": "Always"}]), WHOLE),
    "a trailing comma": (pod(annotations={RESOURCE_SPEC: '{"numaTopologyPolicy": "SingleNUMANode",}'}), SPEC),
    "a list": (pod(annotations={RESOURCE_SPEC: '["FullPCPUs"]'}), SPEC),
    "a word instead of JSON": (pod(annotations={NUMA_SPEC: "SingleNUMANode"}), NUMA),
    "an unknown bind policy": (
        pod(annotations={RESOURCE_SPEC: '{"preferredCPUBindPolicy": "Packed"}'}),
        "preferredCPUBindPolicy must be one of",
    ),
    "an unknown exclusive policy": (
        pod(annotations={RESOURCE_SPEC: '{"preferredCPUExclusivePolicy": "Core"}'}),
        "preferredCPUExclusivePolicy must be one of",
    ),
    "an unknown NUMA policy": (
        pod(annotations={NUMA_SPEC: '{"numaTopologyPolicy": "Strict"}'}),
        "numaTopologyPolicy must be one of",
    ),
    "a typing error of the proposal": (
        pod(annotations={RESOURCE_SPEC: '{"singleNUMANodeExclusive": "Reuqired"}'}),
        "singleNUMANodeExclusive must be one of",
    ),
    "a number": (
        pod(annotations={RESOURCE_SPEC: '{"requiredCPUBindPolicy": 3}'}),
        "requiredCPUBindPolicy must be one of",
    ),
}


@each_row("created", ACCEPTED.values(), ids=ACCEPTED)
def test_what_the_scheduler_can_serve_is_admitted(created: Json) -> None:
    assert complaints(created) == []
    assert not _refused_by_the_scheduler(created)


@each_row(("created", "message"), REFUSED.values(), ids=REFUSED)
def test_impossible_pods_are_denied_with_a_sentence(created: Json, message: str) -> None:
    found = complaints(created)
    assert len(found) == 1
    assert found[0].startswith(message)
    assert _refused_by_the_scheduler(created)


@each_row("created", [each for each, _ in REFUSED.values()], ids=REFUSED)
def test_pods_of_other_schedulers_are_none_of_its_business(created: Json) -> None:
    other = deepcopy(created)
    other["spec"]["schedulerName"] = "default-scheduler"
    assert complaints(other) == []


def test_the_chart_has_the_same_policy_switched_off_by_default() -> None:
    assert not [each for each in rendered() if each["metadata"]["name"].endswith("-pod-authors")]
    chart = rendered({"podAuthorPolicy": {"enabled": True}})
    assert of_authors(chart, "ValidatingAdmissionPolicy")["spec"] == policy()["spec"]
    binding = of_authors(chart, "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding["policyName"] == of_authors(chart, "ValidatingAdmissionPolicy")["metadata"]["name"]
    assert binding["validationActions"] == ["Deny"]


def test_the_policy_of_the_chart_follows_names_and_actions() -> None:
    values = {
        "podAuthorPolicy": {"enabled": True, "actions": ["Warn", "Audit"]},
        "config": {"profiles": [{"schedulerName": "one"}, {"schedulerName": "two"}]},
    }
    chart = rendered(values)
    condition = of_authors(chart, "ValidatingAdmissionPolicy")["spec"]["matchConditions"][0]["expression"]
    assert condition.endswith("in ['one', 'two']")
    assert of_authors(chart, "ValidatingAdmissionPolicyBinding")["spec"]["validationActions"] == ["Warn", "Audit"]


def test_the_components_resources_are_there() -> None:
    component = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text())
    assert component["kind"] == "Component"
    assert all((COMPONENT / resource).exists() for resource in component["resources"])
    assert (CHART / "templates" / "pod-author-policy.yaml").exists()


def _refused_by_the_scheduler(created: Json) -> bool:
    """Return true if the scheduler rejects the pod on any node."""
    found = parse_pod(created)
    return bool(found.problem) or isinstance(demand_of(found.request, AllocateOptions()), Rejection)
