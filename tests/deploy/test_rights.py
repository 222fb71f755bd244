"""Conversion of requests to permissions, and their comparison with the permissions of the deployment."""

from typing import Any

import yaml

from koord_numa.app.runtime import AGENT
from koord_numa.sandbox.apiserver import Asked
from tests.rights import RBAC, Right, granted, judge, right_of
from tests.tables import each_row


@each_row(
    ("asked", "right"),
    [
        (Asked("list", "", "v1", "pods", user_agent=AGENT), ("list", "", "pods")),
        (Asked("create", "", "v1", "pods", "binding", user_agent=AGENT), ("create", "", "pods/binding")),
        (Asked("watch", "apps", "v1", "things", user_agent="kopf/1.45"), ("watch", "apps", "things")),
        (Asked("get", path="/apis", user_agent=AGENT), None),
        (Asked("delete", "", "v1", "pods", user_agent="koord-numa/0.1.0"), None),
        (Asked("delete", "", "v1", "pods", user_agent="Python/3.11 aiohttp"), None),
    ],
    ids=["plain", "subresource", "by Kopf", "discovery", "by the command line", "by a test"],
)
def test_which_right_a_request_needs(asked: Asked, right: Right | None) -> None:
    assert right_of(asked) == right


def test_rules_multiply() -> None:
    rules = [{"apiGroups": ["", "apps"], "resources": ["a", "b/status"], "verbs": ["get"]}]
    manifests: list[dict[str, Any]] = [{"kind": "Role", "rules": rules}, {"kind": "RoleBinding"}]
    assert granted(manifests) == {
        ("get", "", "a"),
        ("get", "apps", "a"),
        ("get", "", "b/status"),
        ("get", "apps", "b/status"),
    }


@each_row(
    ("used", "all_run", "complaints"),
    [
        ({("get", "", "pods")}, True, ["granted and never used: list nodes"]),
        ({("get", "", "pods")}, False, []),
        (
            {("get", "", "pods"), ("list", "", "nodes"), ("create", "apps", "things/x")},
            True,
            ["used and not granted: create things/x.apps"],
        ),
        ({("get", "", "pods"), ("list", "", "nodes")}, True, []),
    ],
    ids=["less than granted", "less in a part of the tests", "more than granted", "exactly"],
)
def test_exactly_what_is_used(used: set[Right], all_run: bool, complaints: list[str]) -> None:
    assert judge(used, {("get", "", "pods"), ("list", "", "nodes")}, all_run=all_run) == complaints


def test_no_wildcards_and_no_secrets() -> None:
    rights = granted(document for document in yaml.safe_load_all(RBAC.read_text()) if document)
    assert rights
    assert not [right for right in rights if "*" in right]
    assert not [right for right in rights if right[2] == "secrets"]
