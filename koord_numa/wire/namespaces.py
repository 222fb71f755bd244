"""Namespaces: from API objects to the labels that affinity terms select them by."""

from collections.abc import Mapping
from typing import Any

from koord_numa.core.objects.workloads import Namespace
from koord_numa.wire.metadata import head
from koord_numa.wire.parsing import Problems


def parse_namespace(obj: Mapping[str, Any]) -> Namespace:
    """A namespace; with malformed labels it has none, so that no selector picks it. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "Namespace", problems)
    return Namespace(top.name, top.labels, problems.problem)
