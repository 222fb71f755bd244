"""One version everywhere, and workflows that call make targets which exist."""

import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Final

import pytest
import yaml

from koord_numa import __version__

ROOT: Final = Path(__file__).parents[2]
WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
MAKEFILE: Final = (ROOT / "Makefile").read_text()


def test_the_version_is_the_same_everywhere() -> None:
    chart = yaml.safe_load((ROOT / "deploy" / "chart" / "koord-numa" / "Chart.yaml").read_text())
    printed = subprocess.run(
        ["make", "--silent", "version"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {chart["version"], str(chart["appVersion"]), printed.strip()} == {__version__}
    assert "version =" not in (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[0]


def test_the_plugin_manifest_is_filled_in_from_the_archive(tmp_path: Path) -> None:
    made = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        script = ROOT / "deploy" / "tools" / "krew.py"
        subprocess.run([sys.executable, script, folder, "acme/koord-numa"], check=True)
        made.append((folder / "kubectl-koord_numa.tar.gz").read_bytes())
    assert made[0] == made[1]
    text = (tmp_path / "one" / "koord-numa.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    [platform] = spec["platforms"]
    assert platform["sha256"] == hashlib.sha256(made[0]).hexdigest()
    assert spec["version"] == f"v{__version__}"
    assert (
        platform["uri"]
        == f"https://github.com/acme/koord-numa/releases/download/v{__version__}/kubectl-koord_numa.tar.gz"
    )
    assert not re.search("REPOSITORY|VERSION|SHA256", text)
    with tarfile.open(tmp_path / "one" / "kubectl-koord_numa.tar.gz") as archive:
        modes = {member.name: member.mode for member in archive}
    assert modes == {"kubectl-koord_numa": 0o755, "LICENSE": 0o644}
    assert {entry["from"] for entry in platform["files"]} == modes.keys()
    assert platform["bin"] in modes


@pytest.mark.parametrize("repository", ["", "acme", "https://github.com/acme/x"])
def test_a_repository_is_an_owner_and_a_name(repository: str, tmp_path: Path) -> None:
    script = ROOT / "deploy" / "tools" / "krew.py"
    done = subprocess.run([sys.executable, script, tmp_path, repository], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "OWNER/NAME" in done.stderr


def test_the_chart_is_packed_with_the_version(tmp_path: Path) -> None:
    pytest.importorskip("helm_python", reason="Helm's library is not installed on this platform")
    subprocess.run([sys.executable, ROOT / "deploy" / "tools" / "chart.py", tmp_path], check=True)
    assert [path.name for path in tmp_path.iterdir()] == [f"koord-numa-{__version__}.tgz"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_that_exist(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {target for run in runs for target in re.findall(r"make (?:--silent )?([a-z-]+)", run)}
    assert called
    assert [target for target in called if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)] == []


def test_the_lock_file_has_every_dependency_with_hashes() -> None:
    """``make lock`` writes it. Each entry is ``name==version \\`` with its hashes below."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    text = (ROOT / "deploy" / "requirements.lock").read_text()
    locked = re.findall(r"^([\w.-]+)==[^ ]+(?: ; [^\\]+)? \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    assert len(locked) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE))
    names = {re.match(r"[\w.-]+", each)[0].lower() for each in wanted}  # type: ignore[index]  # each begins with a name
    assert sorted(names - set(locked)) == []


def test_workflows_ask_for_no_more_than_they_need() -> None:
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_the_plugin_says_what_it_needs(tmp_path: Path) -> None:
    script = ROOT / "deploy" / "krew" / "kubectl-koord_numa"
    done = subprocess.run(
        ["/bin/sh", script, "nodes"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "pipx" in done.stderr


def test_every_target_is_explained() -> None:
    helped = subprocess.run(["make", "--silent", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("docs", "docs-output", "dist", "krew", "chart", "image", "version"):
        assert re.search(rf"^{target} ", helped, re.MULTILINE)
