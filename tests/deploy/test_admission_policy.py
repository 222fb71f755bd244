"""Users who may change resource-status: the policy's CEL expressions, evaluated on requests as in the API server."""

from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError

from koord_numa.wire import names
from tests.deploy.test_manifests import rendered

COMPONENT = Path(__file__).parents[2] / "deploy" / "kustomize" / "components" / "admission-policy"
Manifest = dict[str, Any]

SCHEDULER = {"kustomize": "koord-numa:koord-numa", "chart": "scheduling:rack-koord-numa"}
KOORDLET = "koordinator-system:koordlet"
STATUS = {names.RESOURCE_STATUS: '{"cpuset":"0-95"}'}


def manifests(source: str) -> list[Manifest]:
    if source == "chart":
        return rendered({"admissionPolicy": {"enabled": True}})
    return [document for document in yaml.safe_load_all((COMPONENT / "admission-policy.yaml").read_text()) if document]


@pytest.fixture(params=["kustomize", "chart"])
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def policy(source: str) -> Manifest:
    spec: Manifest = next(m for m in manifests(source) if m["kind"] == "ValidatingAdmissionPolicy")["spec"]
    return spec


def evaluated(expression: str, facts: Manifest) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression)).evaluate(
        {key: json_to_cel(value) for key, value in facts.items()}
    )


def admits(policy: Manifest, user: str, old: Manifest | None, new: Manifest) -> bool:
    """Conditions first, then variables in their order, then every validation: as admission does."""
    facts: Manifest = {
        "object": new,
        "oldObject": old,
        "request": {
            "operation": "CREATE" if old is None else "UPDATE",
            "userInfo": {"username": f"system:serviceaccount:{user}"},
        },
    }
    if not all(evaluated(condition["expression"], facts) for condition in policy["matchConditions"]):
        return True
    variables: Manifest = {}
    for variable in policy["variables"]:
        found = evaluated(variable["expression"], facts | {"variables": variables})
        variables[variable["name"]] = [str(each) for each in found] if isinstance(found, list) else str(found)
    facts["variables"] = variables
    verdicts = []
    for validation in policy["validations"]:
        verdicts.append(bool(evaluated(validation["expression"], facts)))
        assert user.rpartition(":")[2] in str(evaluated(validation["messageExpression"], facts))
    return all(verdicts)


def pod(annotations: Manifest | None = None, **metadata: Any) -> Manifest:
    carried = {} if annotations is None else {"annotations": annotations}
    return {"metadata": {"name": "a", "namespace": "users"} | metadata | carried, "spec": {}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(pod(), pod(STATUS), id="added"),
        pytest.param(pod(STATUS), pod({names.RESOURCE_STATUS: '{"cpuset":"0"}'}), id="changed"),
        pytest.param(pod(STATUS), pod({}), id="removed"),
        pytest.param(None, pod(STATUS), id="on a new pod"),
        pytest.param(None, pod(STATUS, name="a") | {"target": {"name": "n"}}, id="on a binding"),
    ],
)
def test_only_scheduler_and_agent_change_resource_status(
    source: str, policy: Manifest, old: Manifest | None, new: Manifest
) -> None:
    assert not admits(policy, "users:alice", old, new)
    assert admits(policy, SCHEDULER[source], old, new)
    assert admits(policy, KOORDLET, old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(pod(), pod({"other": "1"}), id="another annotation"),
        pytest.param(pod(STATUS), pod(STATUS | {"other": "1"}), id="beside it"),
        pytest.param(None, pod(), id="a new pod"),
        pytest.param(None, {"metadata": {"name": "a"}}, id="an eviction"),
        pytest.param(None, {"spec": {}}, id="nothing that has metadata"),
    ],
)
def test_whatever_leaves_resource_status_alone_is_admitted(
    policy: Manifest, old: Manifest | None, new: Manifest
) -> None:
    assert admits(policy, "users:alice", old, new)


def test_every_request_that_can_carry_annotations_is_matched(policy: Manifest) -> None:
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE", "UPDATE"], ["pods", "pods/*", "bindings"])
    assert policy["failurePolicy"] == "Ignore"


def test_the_binding_denies(source: str) -> None:
    policy, binding = (
        next(m for m in manifests(source) if m["kind"] == kind)
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    )
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_a_mistake_in_an_expression_is_noticed() -> None:
    with pytest.raises((CELParseError, CELEvalError)):
        evaluated("object.metadata.", {"object": pod()})
