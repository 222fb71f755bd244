"""Namespaces as affinity terms select them."""

from typing import Any

import pytest

from koord_numa.core.objects.constraints import Namespace
from koord_numa.wire.errors import WireError
from koord_numa.wire.workloads import parse_namespace


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param({"name": "shop", "labels": {"team": "a"}}, Namespace("shop", {"team": "a"}), id="labelled"),
        pytest.param({"name": "shop"}, Namespace("shop"), id="plain"),
    ],
)
def test_a_namespace(metadata: dict[str, Any], expected: Namespace) -> None:
    assert parse_namespace({"metadata": metadata}) == expected


def test_malformed_labels_are_none_and_said() -> None:
    found = parse_namespace({"metadata": {"name": "shop", "labels": {"team": 5}}})
    assert found == Namespace("shop", problem=found.problem)
    assert found.problem.startswith("Namespace shop: metadata.labels")


def test_one_without_a_name_cannot_be_read() -> None:
    with pytest.raises(WireError, match=r"Namespace: metadata\.name: null is not a name"):
        parse_namespace({"metadata": {"labels": {}}})
