"""The reference pages agree with the code; ``make docs-output`` writes the page of the command line."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import yaml

from koord_numa.sandbox.machines.description import KubeletModel, MachineModel, NumaNodeModel, read_descriptions

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    path = ROOT / "docs" / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"docs_tools_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_generated_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "reference" / "cli.md").read_text() == tool("reference").pages()["cli.md"]


def test_the_navigation_names_pages_that_exist() -> None:
    listed: set[str] = set()

    def collect(entry: object) -> None:
        if isinstance(entry, str):
            listed.add(entry)
        elif isinstance(entry, list):
            for each in entry:
                collect(each)
        elif isinstance(entry, dict):
            for each in entry.values():
                collect(each)

    collect(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    docs = ROOT / "docs"
    assert sorted(listed - {str(path.relative_to(docs)) for path in docs.rglob("*.md")}) == []
    assert len(listed) > 25


def test_every_field_of_the_machine_file_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "machine-file.md").read_text()
    fields = [field for part in (MachineModel, NumaNodeModel, KubeletModel) for field in part.model_fields.values()]
    assert [field.alias for field in fields if f"`{field.alias}`" not in text] == []
    [example] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(read_descriptions(yaml.safe_load(example), ROOT)) == 6
