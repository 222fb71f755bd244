"""One ConfigMap and one pod that the tests of writes change."""

from typing import Any

from tests.sandbox.apiserver.client import (
    CONFIGMAPS,
    PODS,
)

CM = f"{CONFIGMAPS}/c"
POD = f"{PODS}/p"


def version(body: dict[str, Any]) -> int:
    """The resourceVersion as a number."""
    return int(body["metadata"]["resourceVersion"])
