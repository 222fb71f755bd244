"""One version everywhere, and workflows that call make targets which exist."""

import hashlib
import importlib.metadata
import importlib.util
import json
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from koord_numa import __version__
from tests.tables import each_row

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


PLUGIN = ROOT / "deploy" / "tools" / "krew.py"

IN_TEST = ("click", "msgspec", "orjson")
"""Packages of the plugin that are enough for ``version`` and for errors."""


OF_VERSION = re.compile(
    r"koord_numa/(__init__|(cli|cluster|wire)/[^/]*|cli/.*|core/(__init__|value_objects)|view/(__init__|printable))\.py$"
)
"""The modules that ``version`` imports."""


def wheel_of(package: str, folder: Path) -> None:
    """Write the installed files of a package as a wheel."""
    installed = importlib.metadata.distribution(package)
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{package}-1-cp3-x.whl", "w") as wheel:
        for file in installed.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                wheel.write(str(installed.locate_file(file)), str(file))


def tool(name: str) -> Any:
    """A script of ``deploy/tools``."""
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "deploy" / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "deploy" / "tools"))  # as in a run of the script, which may import its neighbors
    try:
        spec.loader.exec_module(found)
    finally:
        sys.path.pop(0)
    return found


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives from wheels of this Python and a part of our own modules. The release makes them from the lock file."""
    folder, maker = tmp_path_factory.mktemp("plugin"), tool("krew")
    for package in IN_TEST:
        wheel_of(package, folder / f"cp3{sys.version_info.minor}")
    everything = maker.own_files
    maker.own_files = lambda: ((name, content) for name, content in everything() if OF_VERSION.match(name))
    maker.main(folder, "acme/koord-numa", ["linux-amd64", "darwin-arm64"], folder, 0)
    return folder


def test_the_plugin_manifest_is_filled_in_from_the_archives(plugin: Path) -> None:
    made = [(plugin / f"kubectl-koord_numa-{it}.tar.gz").read_bytes() for it in ("linux-amd64", "darwin-arm64")]
    assert made[0] == made[1]  # equal content gives equal archives
    text = (plugin / "koord-numa.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]
    assert spec["version"] == f"v{__version__}"
    assert not re.search("REPOSITORY|VERSION|SHA256|ARCH", text)
    selectors = [platform["selector"]["matchLabels"] for platform in spec["platforms"]]
    assert selectors == [{"os": "linux", "arch": "amd64"}, {"os": "darwin", "arch": "arm64"}]
    for platform in spec["platforms"]:
        base, _, name = platform["uri"].rpartition("/")
        assert base == f"https://github.com/acme/koord-numa/releases/download/v{__version__}"
        assert platform["sha256"] == hashlib.sha256((plugin / name).read_bytes()).hexdigest()
        with tarfile.open(plugin / name) as archive:
            modes = {member.name: member.mode for member in archive}
        assert {entry["from"] for entry in platform["files"]} == modes.keys()
        assert modes[platform["bin"]] == 0o755


@pytest.mark.e2e
def test_the_plugin_needs_only_python(plugin: Path, tmp_path: Path) -> None:
    with tarfile.open(plugin / "kubectl-koord_numa-linux-amd64.tar.gz") as archive:
        archive.extractall(tmp_path / "store")  # noqa: S202  (our own archive)
    (tmp_path / "bin").mkdir()
    for name in ("kubectl-koord_numa", "kubectl_complete-koord_numa"):
        (tmp_path / "bin" / name).symlink_to(tmp_path / "store" / "kubectl-koord_numa")
    # A Python without packages of its own, as the system's.
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')  # type: ignore[attr-defined]  # private
    (tmp_path / "bin" / "python3").chmod(0o755)

    def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path)}
        command = [str(tmp_path / "bin" / name), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    printed = run("kubectl-koord_numa", "version")
    assert printed.stdout.splitlines()[0] == f"koord-numa {__version__}", printed.stderr
    assert run("kubectl_complete-koord_numa", "nodes", "-o", "js").stdout.split() == ["json", "jsonpath=", ":4"]
    assert len(list((tmp_path / "store").glob("modules-*"))) == 1
    (tmp_path / "store" / "modules.sha256").write_text("0" * 64)
    assert "is damaged; install the plugin again" in run("kubectl-koord_numa", "version").stderr


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("numpy/_core/tests/test_multiarray.py", False),
        ("numpy/f2py/f2py2e.py", False),
        ("numpy/_core/_simd.cpython-313-x86_64-linux-gnu.so", False),
        ("numpy/_core/_multiarray_umath.cpython-313-x86_64-linux-gnu.so", True),
        ("pip/_internal/cli/main.py", False),
        ("pygments/lexers/rust.py", False),
        ("pygments/lexers/python.py", True),
        ("jinja2/tests.py", True),
        ("aiohttp/_http_parser.pyx", False),
        ("msgspec/__init__.pyi", False),
        ("koord_numa/__init__.py", True),
        ("kubernetes_asyncio/client/models/v1_pod.py", True),
        ("kubernetes_asyncio/client/models/__pycache__/v1_pod.cpython-313.pyc", False),
        ("kubernetes_asyncio/config/__pycache__/kube_config.cpython-313.pyc", True),
        ("numpy/_core/tests/__pycache__/test_simd.cpython-313.pyc", False),
    ],
)
def test_what_an_image_keeps_of_an_installation(name: str, kept: bool, tmp_path: Path) -> None:
    file = tmp_path / "lib" / "python3.13" / "site-packages" / name
    file.parent.mkdir(parents=True)
    file.touch()
    prune = tool("prune")
    prune.strip = lambda _: None  # an empty file is no library
    prune.prune(tmp_path)
    assert file.exists() is kept


def library(after: int) -> bytes:
    """An ELF file with a program header, a segment, and sections of this size after it."""
    header = b"\x7fELF\x02\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 200, 0, 64, 56, 1, 64, 9, 8
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 180, 180, 4096)
    return (header + segment).ljust(180, b"s") + b"d" * after


def test_libraries_of_the_plugin_have_no_symbols(tmp_path: Path) -> None:
    shorten = tool("krew").without_symbols
    short = shorten(library(100))
    assert (len(short), short[40:48], short[58:64]) == (180, bytes(8), bytes(6))
    assert short[:40] + short[64:] == library(0)[:40] + library(0)[64:]
    assert shorten(library(5)) == library(5)  # not worth a change
    assert shorten(b"text") == b"text"
    real = Path(str(import_module("yaml._yaml").__file__))
    (tmp_path / real.name).write_bytes(shorten(real.read_bytes()))
    code = (
        "import sys; from importlib.util import module_from_spec, spec_from_file_location\n"
        "module_from_spec(spec_from_file_location('yaml._yaml', sys.argv[1])); print('loaded')"
    )
    command = [sys.executable, "-c", code, str(tmp_path / real.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "loaded\n"


def test_the_plugin_has_every_package_that_it_names() -> None:
    """With the hashes of the lock file, without markers, each once."""
    maker = tool("krew")
    entries = re.findall(r"^([\w.-]+)==\S+ \\\n    --hash=sha256:", maker.requirements(), re.MULTILINE)
    assert tuple(entries) == maker.PACKAGES


@pytest.mark.parametrize("repository", ["", "acme", "https://github.com/acme/x"])
def test_a_repository_is_an_owner_and_a_name(repository: str, tmp_path: Path) -> None:
    script = ROOT / "deploy" / "tools" / "krew.py"
    done = subprocess.run([sys.executable, script, tmp_path, repository], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "OWNER/NAME" in done.stderr


@pytest.mark.e2e
def test_the_chart_is_packed_with_the_version(tmp_path: Path) -> None:
    pytest.importorskip("helm_python", reason="Helm's library is not installed on this platform")
    subprocess.run([sys.executable, ROOT / "deploy" / "tools" / "chart.py", tmp_path], check=True)
    assert [path.name for path in tmp_path.iterdir()] == [f"koord-numa-{__version__}.tgz"]


@each_row("path", WORKFLOWS, ids=lambda path: path.stem)
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


def test_every_dependency_has_a_purpose_in_the_documents() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[\w-]+", entry)[0] for entry in wanted}  # type: ignore[index]  # each begins with a name
    section = (ROOT / "docs" / "install.md").read_text().partition("## What an installation contains")[2]
    rows = re.findall(r"^\| (.*?) \| \d+ \| (.+) \|$", section.partition("## Upgrade")[0], re.MULTILINE)
    assert {name for packages, _ in rows for name in re.findall(r"`([\w-]+)`", packages)} - {"Pygments"} == names


def test_actions_and_base_images_are_pinned_by_digest() -> None:
    used = [line.strip() for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    images = re.findall(r"^FROM .*", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    assert used
    assert [line for line in used if not re.fullmatch(r"- uses: [\w./-]+@[0-9a-f]{40} # v[\d.]+", line)] == []
    assert images
    assert [line for line in images if not re.search(r":[\w.-]+@sha256:[0-9a-f]{64}( AS \w+)?$", line)] == []
    versions = {tuple(re.split("[@ ]", line.removeprefix("- uses: "), maxsplit=1)) for line in used}
    assert len({name for name, _ in versions}) == len(versions)


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="no actionlint on the PATH")
def test_workflows_are_clean() -> None:
    subprocess.run(["actionlint", *map(str, WORKFLOWS)], check=True)


def test_workflows_ask_for_no_more_than_they_need() -> None:
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_the_plugin_says_what_it_needs(tmp_path: Path) -> None:
    script = ROOT / "deploy" / "krew" / "kubectl-koord_numa"
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")  # an older Python
    (tmp_path / "python3").chmod(0o755)
    for name in ("readlink", "dirname", "basename"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    done = subprocess.run(
        ["/bin/sh", script, "nodes"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert done.stderr == "kubectl koord-numa needs Python 3.11 or newer (python3) on the PATH\n"


UPDATED = datetime(2026, 1, 2, tzinfo=UTC)
STATEMENT = {"vulnerability": "CVE-2030-1", "package": "aiohttp", "version": "3.14.5", "status": "not_affected"}
NOT_EXECUTED = {"justification": "vulnerable_code_not_in_execute_path", "text": "No static files."}
LOCKED = "aiohttp==3.14.5 \\\n    --hash=sha256:0\n"


def test_vex_statements() -> None:
    vex = tool("vex")
    source = {
        "updated": UPDATED,
        "statement": [
            STATEMENT | NOT_EXECUTED,
            STATEMENT | {"vulnerability": "CVE-2030-2", "status": "affected", "text": "Upgrade."},
            STATEMENT | {"vulnerability": "CVE-2030-3", "status": "under_investigation"},
        ],
    }
    made = vex.document(source, LOCKED, "1.2.3", "acme/x")
    component = {"@id": "pkg:pypi/koord-numa@1.2.3", "subcomponents": [{"@id": "pkg:pypi/aiohttp@3.14.5"}]}
    about = [{"vulnerability": {"name": f"CVE-2030-{number}"}, "products": [component]} for number in (1, 2, 3)]
    assert made["@id"] == "https://github.com/acme/x/releases/download/v1.2.3/vex.openvex.json"
    assert made["timestamp"] == "2026-01-02T00:00:00Z"
    reason = {"justification": "vulnerable_code_not_in_execute_path", "impact_statement": "No static files."}
    assert made["statements"] == [
        {**about[0], "status": "not_affected", **reason},
        {**about[1], "status": "affected", "action_statement": "Upgrade."},
        {**about[2], "status": "under_investigation"},
    ]
    assert vex.ignored(source) == "--ignore-vuln CVE-2030-1"


@each_row(
    ("change", "complaint"),
    [
        ({"version": "3.0"}, "aiohttp 3.0 is not in requirements.lock; remove or renew the entry"),
        ({"status": "fine"}, "the status is one of"),
        ({"justification": "trust me"}, "has one of component_not_present"),
        ({"text": ""}, "the text is missing"),
        ({"reason": "x"}, "unknown or missing: reason"),
    ],
    ids=["outdated", "status", "justification", "text", "key"],
)
def test_vex_statements_that_are_wrong(change: dict[str, str], complaint: str) -> None:
    with pytest.raises(SystemExit, match=complaint):
        tool("vex").document({"updated": UPDATED, "statement": [STATEMENT | NOT_EXECUTED | change]}, LOCKED, "1", "a/b")


def test_the_vex_file_agrees_with_the_lock_file(tmp_path: Path) -> None:
    script = ROOT / "deploy" / "tools" / "vex.py"
    subprocess.run([sys.executable, script, tmp_path / "vex.json", "acme/x"], check=True)
    assert json.loads((tmp_path / "vex.json").read_text())["@context"] == "https://openvex.dev/ns/v0.2.0"


def test_every_target_is_explained() -> None:
    helped = subprocess.run(["make", "--silent", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("docs", "docs-output", "dist", "krew", "vex", "chart", "image", "version"):
        assert re.search(rf"^{target} ", helped, re.MULTILINE)
