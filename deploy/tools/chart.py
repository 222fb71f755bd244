# noqa: INP001  (a script that make runs; nothing imports it)
"""
Lint, render and pack the Helm chart with Helm's own library: ``make chart``. The chart gets the version of the package.

``--schema`` writes the part of ``values.schema.json`` that checks ``config``, from the schema of the scheduler's settings.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from koord_numa import __version__
from koord_numa.settings import Settings

CHART: Final = Path(__file__).parents[1] / "chart" / "koord-numa"
SCHEMA: Final = CHART / "values.schema.json"
_NOT_CHECKED: Final = ("default", "description", "title")


def values_schema() -> str:
    """Return ``values.schema.json`` with the current schema of ``config``. Everything else is written by hand."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    settings = _without_texts(Settings.model_json_schema())
    schema["$defs"] = settings.pop("$defs")
    schema["properties"]["config"] = settings | {"required": ["apiVersion", "kind"]}
    return json.dumps(schema, indent=2) + "\n"


def _without_texts(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the members that check nothing. Names of properties are kept."""
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            found[key] = {name: _without_texts(inner) for name, inner in value.items()}
        elif isinstance(value, dict):
            found[key] = _without_texts(value)
        elif isinstance(value, list):
            found[key] = [_without_texts(inner) if isinstance(inner, dict) else inner for inner in value]
        elif key not in _NOT_CHECKED:
            found[key] = value
    return {key: value for key, value in found.items() if key not in _NOT_CHECKED}


def main(destination: Path) -> None:
    """Write the archive into the folder. Ends with a line for each finding of Helm's strict linter, if there are any."""
    import helm_python as helm  # noqa: PLC0415  (it is not available on every platform)

    findings = [found for found in helm.lint(CHART, strict=True)["messages"] if found["severity"] > 1]
    if findings:
        raise SystemExit("\n".join(f"{found['path']}: {found['error']}" for found in findings))
    helm.Chart.load(CHART).render({}, name="koord-numa", namespace="koord-numa")
    destination.mkdir(parents=True, exist_ok=True)
    print(helm.package(CHART, destination=str(destination), version=__version__, app_version=__version__))  # noqa: T201  (says what was made)


if __name__ == "__main__":
    if sys.argv[1] == "--schema":
        SCHEMA.write_text(values_schema(), encoding="utf-8")
    else:
        main(Path(sys.argv[1]))
