"""Paths of the files of the package: CustomResourceDefinitions and the manifests of the demo."""

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
