"""Generates the node agent's protobuf messages before the package is built or installed; everything else is in ``pyproject.toml``."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
PROTO = Path("koord_numa/wire/proto")


class BuildPy(build_py):
    """Runs protoc first, also for editable installs. The messages are written beside their ``.proto`` files."""

    def run(self) -> None:
        from grpc_tools import protoc  # noqa: PLC0415  (a build requirement, absent when the package merely runs)

        for source in sorted((ROOT / PROTO).glob("*.proto")):
            if protoc.main(["protoc", f"-I{ROOT}", f"--python_out={ROOT}", str(source.relative_to(ROOT))]):
                raise SystemExit(f"protoc failed on {source}")
        super().run()


setup(cmdclass={"build_py": BuildPy})
