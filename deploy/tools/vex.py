# noqa: INP001  (a script that make runs; a test loads it by its path)
"""
Write the OpenVEX document of a release from ``deploy/vex.toml``: ``make vex``. With ``--ignored``, print options for pip-audit instead.

An entry about a version that the lock file no longer has is an error, so that no statement outlives its reason.
"""

import argparse
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "deploy" / "vex.toml"
LOCK: Final = ROOT / "deploy" / "requirements.lock"

STATUSES: Final = ("not_affected", "affected", "fixed", "under_investigation")
JUSTIFICATIONS: Final = (
    "component_not_present",
    "vulnerable_code_not_present",
    "vulnerable_code_not_in_execute_path",
    "vulnerable_code_cannot_be_controlled_by_adversary",
    "inline_mitigations_already_exist",
)
KEYS: Final = frozenset({"vulnerability", "package", "version", "status", "justification", "text"})


def document(source: Mapping[str, Any], lock: str, version: str, repository: str) -> dict[str, Any]:
    """Return the OpenVEX document. Raises ``SystemExit`` for an entry that is wrong."""
    updated = source.get("updated")
    if not isinstance(updated, datetime) or updated.tzinfo is None:
        raise SystemExit("vex.toml: updated is not a time with a zone")
    return {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": f"https://github.com/{repository}/releases/download/v{version}/vex.openvex.json",
        "author": "The koord-numa maintainers",
        "timestamp": updated.isoformat().replace("+00:00", "Z"),
        "version": 1,
        "statements": [statement(entry, lock, version) for entry in entries(source)],
    }


def entries(source: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    """Yield the entries. Raises ``SystemExit`` for unknown keys and words."""
    for entry in source.get("statement", ()):
        name = entry.get("vulnerability", "a statement")
        if wrong := sorted(entry.keys() - KEYS) + sorted(
            {"vulnerability", "package", "version", "status"} - entry.keys()
        ):
            raise SystemExit(f"vex.toml: {name}: unknown or missing: {', '.join(wrong)}")
        if entry["status"] not in STATUSES:
            raise SystemExit(f"vex.toml: {name}: the status is one of {', '.join(STATUSES)}")
        if (entry["status"] == "not_affected") != (entry.get("justification") in JUSTIFICATIONS):
            raise SystemExit(
                f"vex.toml: {name}: not_affected, and nothing else, has one of {', '.join(JUSTIFICATIONS)}"
            )
        if entry["status"] in ("not_affected", "affected") and not entry.get("text"):
            raise SystemExit(f"vex.toml: {name}: the text is missing")
        yield entry


def statement(entry: Mapping[str, str], lock: str, version: str) -> dict[str, Any]:
    """Return one statement. Raises ``SystemExit`` for a version that is not in the lock file."""
    package, of = entry["package"], entry["version"]
    if not re.search(rf"^{re.escape(package)}=={re.escape(of)}[ \\]", lock, re.MULTILINE):
        raise SystemExit(
            f"vex.toml: {entry['vulnerability']}: {package} {of} is not in requirements.lock; remove or renew the entry"
        )
    found: dict[str, Any] = {
        "vulnerability": {"name": entry["vulnerability"]},
        "products": [{"@id": f"pkg:pypi/koord-numa@{version}", "subcomponents": [{"@id": f"pkg:pypi/{package}@{of}"}]}],
        "status": entry["status"],
    }
    if entry["status"] == "not_affected":
        found |= {"justification": entry["justification"], "impact_statement": entry["text"]}
    elif entry["status"] == "affected":
        found["action_statement"] = entry["text"]
    elif entry.get("text"):
        found["status_notes"] = entry["text"]
    return found


def ignored(source: Mapping[str, Any]) -> str:
    """Return the options of pip-audit for vulnerabilities that do not affect koord-numa."""
    return " ".join(
        f"--ignore-vuln {entry['vulnerability']}" for entry in entries(source) if entry["status"] == "not_affected"
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("destination", type=Path, nargs="?", help="the file to write")
    parser.add_argument("repository", nargs="?", default="koord-numa/koord-numa", help="owner and name on GitHub")
    parser.add_argument("--ignored", action="store_true", help="print options for pip-audit")
    given = parser.parse_args()
    source = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    if given.ignored:
        print(ignored(source))  # noqa: T201  (the output of this script)
        return
    text = (ROOT / "koord_numa" / "__init__.py").read_text(encoding="utf-8")
    version = re.findall(r'__version__ = "(.*)"', text)[0]
    made = document(source, LOCK.read_text(encoding="utf-8"), version, given.repository)
    given.destination.parent.mkdir(parents=True, exist_ok=True)
    given.destination.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
