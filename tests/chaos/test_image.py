"""The commands of an image start from an installation that its build has pruned."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import koord_numa

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = Path(koord_numa.__file__).parent

COMMANDS: Final = {
    "scheduler": (("run", "--kubeconfig", "absent"), "absent"),
    "node agent": (("node-agent", "--print", "--sysfs", "absent"), "absent"),
    "command line": (("simulate", "-f", "pod.yaml", "--kubeconfig", "absent"), "absent"),
    "version": (("version",), koord_numa.__version__),
}
"""Arguments of commands that fail after all imports, and a part of the output."""


def dependencies(name: str, found: set[str]) -> set[str]:
    """Return the names of a distribution and of those that it requires on this platform."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    try:
        required = importlib.metadata.requires(name) or ()
    except importlib.metadata.PackageNotFoundError:
        return found  # for another platform
    if key not in found:
        found.add(key)
        for line in required:
            if "extra ==" not in line:
                match = re.match(r"[\w.-]+", line)
                assert match is not None
                dependencies(match[0], found)
    return found


def install(packages: Path) -> None:
    """Copy this package and link the installed files of its dependencies. Libraries are copied, because their symbols are removed."""
    for name in dependencies("koord-numa", set()) - {"koord-numa"}:
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            source = Path(str(distribution.locate_file(file)))
            if ".." not in file.parts and source.is_file():
                target = packages / file
                target.parent.mkdir(parents=True, exist_ok=True)
                if ".so" in source.name:
                    shutil.copyfile(source, target)
                else:
                    target.symlink_to(source)
    shutil.copytree(SOURCE, packages / "koord_numa")


def test_commands_start_from_a_pruned_installation(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3" / "site-packages"
    packages.mkdir(parents=True)
    install(packages)
    printed = subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "tools" / "prune.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"\d+ MB removed, \d+ MB left\n", printed.stdout)
    # Only the standard library and the pruned packages.
    run = (
        f"import sys; sys.path.append({str(packages)!r}); from koord_numa.cli import main; main(prog_name='koord-numa')"
    )
    for arguments, part in COMMANDS.values():
        command = [sys._base_executable, "-I", "-S", "-c", run, *arguments]  # type: ignore[attr-defined]  # private
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert part in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
