"""A pod in few words."""

from typing import Any

from tests.wire.objects import Object

GIB = 2**30
SPEC = "scheduling.koordinator.sh/resource-spec"


def bare(**spec: Any) -> Object:
    """A pod with nothing but this spec."""
    return {"metadata": {"name": "web", "namespace": "shop", "uid": "u1"}, "spec": spec}
