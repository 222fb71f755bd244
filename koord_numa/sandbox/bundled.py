"""Files that come with the package: the resource definitions, and the machines of the demo."""

from importlib.resources import files
from pathlib import Path
from typing import Final

_DATA: Final = Path(str(files("koord_numa.sandbox"))) / "data"

DEMO_RACK: Final = _DATA / "demo.yaml"
"""Nine machines of four kinds."""

DEMO_PODS: Final = _DATA / "demo-pods.yaml"
"""What is asked of them."""


def definitions() -> list[Path]:
    """The CustomResourceDefinitions of NodeResourceTopology and RebindResource."""
    return sorted((_DATA / "crds").glob("*.yaml"))
