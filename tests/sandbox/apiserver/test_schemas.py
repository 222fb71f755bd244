"""The schema file of the sandbox: equal to what its tool generates, and complete for every built-in kind."""

import importlib.util
from pathlib import Path

from koord_numa.sandbox.apiserver.kinds import BUILTIN, SCHEMAS, schema, schema_name

TOOL = Path(__file__).parents[3] / "deploy/tools/schemas.py"

NOT_IN_THE_CLIENT = {("scheduling.k8s.io", "v1beta1", "PodGroup"), ("resource.k8s.io", "v1", "DeviceTaintRule")}
"""Kinds without a model in the client of Kubernetes 1.36."""


def test_the_file_is_current() -> None:
    spec = importlib.util.spec_from_file_location("schemas_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert SCHEMAS.read_text(encoding="utf-8") == tool.text(), "make schemas"


def test_every_built_in_kind_has_a_schema() -> None:
    identities = {(kind.group, version, kind.kind) for kind in BUILTIN for version in kind.versions}
    assert {it for it in identities if not schema_name(*it)} == NOT_IN_THE_CLIENT


def test_fields_are_described() -> None:
    containers = schema(schema_name("", "v1", "Pod"))["properties"]["spec"]["$ref"].rpartition("/")[2]
    found = schema(containers)["properties"]["containers"]
    assert found["description"] == "List of containers belonging to the pod."
    assert found["items"] == {"$ref": "#/components/schemas/io.k8s.api.v1.Container"}
