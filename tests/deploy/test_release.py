"""One version everywhere, and workflows that call make targets which exist."""

import re
import subprocess
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
    krew = yaml.safe_load((ROOT / "deploy" / "krew" / "koord-numa.yaml").read_text())
    printed = subprocess.run(
        ["make", "--silent", "version"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {chart["version"], str(chart["appVersion"]), krew["spec"]["version"].removeprefix("v"), printed.strip()} == {
        __version__
    }
    assert f"/v{__version__}/" in krew["spec"]["platforms"][0]["uri"]
    assert "version =" not in (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[0]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_that_exist(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {target for run in runs for target in re.findall(r"make (?:--silent )?([a-z-]+)", run)}
    assert called
    assert [target for target in called if not re.search(rf"^{target}:", MAKEFILE, re.MULTILINE)] == []


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
    for target in ("docs", "docs-output", "dist", "chart", "image", "version"):
        assert re.search(rf"^{target} ", helped, re.MULTILINE)
