"""The CustomResourceDefinitions obey the rules of a kube-apiserver and say what the issue asks of them."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.crds.structural import COLUMN_TYPES, defaults, faults, knows, root_faults
from tests.tables import each_row

CRDS = Path(__file__).parents[2] / "crds"
FILES = sorted(CRDS.glob("*.yaml"))
DEFINITIONS: dict[str, dict[str, Any]] = {path.stem: yaml.safe_load(path.read_text()) for path in FILES}
VERSIONS = {
    f"{name}-{version['name']}": version
    for name, definition in DEFINITIONS.items()
    for version in definition["spec"]["versions"]
}
each_definition = pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS.keys())
each_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS.keys())


def root(version: dict[str, Any]) -> dict[str, Any]:
    """The schema of a version."""
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def test_there_are_two() -> None:
    assert [definition["metadata"]["name"] for definition in DEFINITIONS.values()] == [
        "noderesourcetopologies.topology.node.k8s.io",
        "rebindresources.scheduling.koordinator.sh",
    ]


@each_definition
def test_names_and_versions(definition: dict[str, Any]) -> None:
    spec = definition["spec"]
    assert (definition["apiVersion"], definition["kind"]) == ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    assert definition["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert spec["names"]["plural"] == spec["names"]["plural"].lower()
    assert spec["names"]["listKind"] == spec["names"]["kind"] + "List"
    assert spec["scope"] == "Cluster"
    assert [version["storage"] for version in spec["versions"]].count(True) == 1
    assert all(version["served"] for version in spec["versions"])


@each_definition
def test_protected_groups_name_their_approval(definition: dict[str, Any]) -> None:
    if definition["spec"]["group"].endswith(("k8s.io", "kubernetes.io")):
        approval = definition["metadata"]["annotations"]["api-approved.kubernetes.io"]
        assert approval == "https://github.com/kubernetes/enhancements/pull/1870"


@each_version
def test_schemas_are_structural(version: dict[str, Any]) -> None:
    assert [*root_faults(root(version)), *faults(root(version))] == []


@each_version
def test_defaults_are_valid(version: dict[str, Any]) -> None:
    for path, value, schema in defaults(root(version)):
        jsonschema.validate(value, {key: rule for key, rule in schema.items() if key != "format"})
        assert path.startswith(".spec.")


@each_version
def test_printer_columns(version: dict[str, Any]) -> None:
    columns = version["additionalPrinterColumns"]
    assert len({column["name"] for column in columns}) == len(columns)
    for column in columns:
        assert column["type"] in COLUMN_TYPES
        assert column["jsonPath"].startswith(".")
        assert knows(root(version), column["jsonPath"]), column["name"]


def test_both_versions_of_a_topology_carry_the_same() -> None:
    """Conversion changes the version's name only, so a field that one schema lacks would be lost."""
    old, new = DEFINITIONS["noderesourcetopologies"]["spec"]["versions"]
    assert (old["name"], new["name"], new["storage"]) == ("v1alpha1", "v1alpha2", True)
    assert root(old) == root(new)
    assert DEFINITIONS["noderesourcetopologies"]["spec"]["conversion"] == {"strategy": "None"}
    assert DEFINITIONS["noderesourcetopologies"]["spec"]["names"]["shortNames"] == ["node-res-topo", "nrt"]


def test_a_rebind_is_asked_for_as_proposed() -> None:
    (version,) = DEFINITIONS["rebindresources"]["spec"]["versions"]
    spec, status = (root(version)["properties"][part] for part in ("spec", "status"))
    described = {
        name: {key: rule for key, rule in field.items() if key != "description"}
        for name, field in spec["properties"].items()
    }
    assert version["subresources"] == {"status": {}}
    assert spec["required"] == ["nodeName"]
    assert described == {
        "nodeName": {"type": "string", "minLength": 1, "maxLength": 253},
        "rebindAction": {"type": "string", "enum": ["RebindCPU"], "default": "RebindCPU"},
        "deadlineInSeconds": {"type": "integer", "format": "int64", "minimum": 1, "default": 600},
        "ttlSecondsAfterFinished": {"type": "integer", "format": "int32", "minimum": 0},
        "moveMemory": {"type": "boolean", "default": False},
        "dryRun": {"type": "boolean", "default": False},
    }
    assert status["properties"]["phase"]["enum"] == ["Pending", "Succeed", "Failed", "Unknown"]
    assert {"reason", "updateTimestamp", "conditions", "plan"} <= status["properties"].keys()


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "untyped": ({"properties": {}}, ".: has no type"),
    "untyped deep": ({"type": "object", "properties": {"a": {"minLength": 1}}}, ".a: has no type"),
    "reference": ({"type": "object", "$ref": "#/x"}, ".: $ref is forbidden"),
    "unique": ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, ".: uniqueItems is forbidden"),
    "array": ({"type": "array"}, ".: an array needs one schema for its items"),
    "required": ({"type": "object", "required": ["x"]}, ".: required but unknown: ['x']"),
    "both": (
        {"type": "object", "properties": {}, "additionalProperties": {}},
        ".: properties and additionalProperties exclude each other",
    ),
    "logic": ({"type": "object", "anyOf": [{"type": "string"}]}, ".: anyOf states more than a restriction"),
    "map key": (
        {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}}},
        },
        ".: map key k is neither required nor has a default",
    ),
}


@each_row(("schema", "fault"), BROKEN.values(), ids=BROKEN.keys())
def test_the_rules_find_faults(schema: dict[str, Any], fault: str) -> None:
    assert [*faults(schema)] == [fault]


UNKNOWN = [".zones[0].nothing", ".nothing[0]", '.attributes[?(@.name=="x")].nothing', ".spec"]


@each_row("path", UNKNOWN)
def test_columns_that_lead_nowhere_are_found(path: str) -> None:
    assert not knows(root(DEFINITIONS["noderesourcetopologies"]["spec"]["versions"][1]), path)
