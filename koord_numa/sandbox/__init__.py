"""An in-memory Kubernetes API server and simulated machines for the demo and the tests, and paths of bundled files. Not in production."""

from importlib.resources import files
from pathlib import Path
from typing import Final

_DATA: Final = Path(str(files("koord_numa.sandbox"))) / "data"

DEMO_RACK: Final = _DATA / "demo.yaml"
"""Nine machines of four kinds."""

DEMO_PODS: Final = _DATA / "demo-pods.yaml"
"""Pods of the demo."""


def definitions() -> list[Path]:
    """Return the paths of the CustomResourceDefinitions of NodeResourceTopology and RebindResource."""
    return sorted((_DATA / "crds").glob("*.yaml"))
