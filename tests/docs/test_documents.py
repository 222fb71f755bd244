"""Statements of documents are true: examples are parsed, names exist, links lead to files."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

from koord_numa.settings import Settings, load_settings
from koord_numa.wire import names
from tests.tables import each_row

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]+)[^)]*\)")


def test_the_documented_configuration_is_the_default() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    assert yaml.safe_load(example[1]) == Settings().model_dump(mode="json", by_alias=True)
    assert load_settings(example[1]) == Settings()


def test_every_setting_and_value_is_documented() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    schema = Settings.model_json_schema(by_alias=True)
    words = {
        word
        for part in [schema, *schema["$defs"].values()]
        for word in [*part.get("properties", {}), *part.get("enum", [])]
        if word
    }
    of_pods = {"Default", "ConstrainedBurst"}  # bind policies that defaultCPUBindPolicy rejects
    assert len(words) > 120
    assert sorted(word for word in words - of_pods if not re.search(rf"\b{word}\b", text)) == []


@each_row("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    missing = [target for target in LINK.findall(document.read_text()) if not (document.parent / target).exists()]
    assert not missing


def test_every_name_on_the_wire_is_documented() -> None:
    text = (ROOT / "docs" / "labels.md").read_text()
    domains = ("koordinator.sh/", "koord-numa/", "topology.node.k8s.io/")
    words = {
        value
        for key, value in vars(names).items()
        if key.isupper()
        and isinstance(value, str)
        and (any(d in value for d in domains) or key.startswith("ATTRIBUTE_"))
    }
    assert not sorted(word for word in words if word not in text)


def test_the_script_of_the_pictures_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """``make docs-output`` runs it after another script whose functions it uses."""
    script = ROOT / "docs" / "tools" / "screenshots.py"
    monkeypatch.syspath_prepend(str(script.parent))
    assert "main" in runpy.run_path(str(script), run_name="imported")
