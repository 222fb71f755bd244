# noqa: INP001  (a script that make runs; nothing imports it)
"""Lints, renders and packs the Helm chart with Helm's own library: ``make chart``. The chart gets the version of the package."""

import sys
from pathlib import Path
from typing import Final

import helm_python as helm

from koord_numa import __version__

CHART: Final = Path(__file__).parents[1] / "chart" / "koord-numa"


def main(destination: Path) -> None:
    """Write the archive into the folder. Ends with a line for each finding of Helm's strict linter, if there are any."""
    findings = [found for found in helm.lint(CHART, strict=True)["messages"] if found["severity"] > 1]
    if findings:
        raise SystemExit("\n".join(f"{found['path']}: {found['error']}" for found in findings))
    helm.Chart.load(CHART).render({}, name="koord-numa", namespace="koord-numa")
    destination.mkdir(parents=True, exist_ok=True)
    print(helm.package(CHART, destination=str(destination), version=__version__, app_version=__version__))  # noqa: T201  (says what was made)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
