# noqa: INP001  (a script that make runs; a test loads it by its path)
"""
Writes the kubectl plugin's archive and its Krew manifest: ``make krew``.

Version, repository and the archive's checksum are filled into ``deploy/krew/koord-numa.yaml``. The archive is the same to the byte for the
same content, so that a checksum that was published stays true.
"""

import gzip
import hashlib
import re
import sys
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "krew"
ARCHIVE: Final = "kubectl-koord_numa.tar.gz"
MANIFEST: Final = "koord-numa.yaml"
CONTENT: Final = ((FOLDER / "kubectl-koord_numa", 0o755), (ROOT / "LICENSE", 0o644))


def main(destination: Path, repository: str) -> None:
    """``repository`` is the owner and name on GitHub, where releases are."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise SystemExit(f"the repository is OWNER/NAME, found {repository!r}")
    destination.mkdir(parents=True, exist_ok=True)
    archive = destination / ARCHIVE
    write_archive(archive)
    values = {
        "VERSION": version(),
        "REPOSITORY": repository,
        "SHA256": hashlib.sha256(archive.read_bytes()).hexdigest(),
    }
    text = (FOLDER / MANIFEST).read_text(encoding="utf-8")
    filled = re.sub("|".join(values), lambda found: values[found[0]], text.partition("\n")[2])
    (destination / MANIFEST).write_text(filled, encoding="utf-8")


def version() -> str:
    """The version of the package, which is written in one place."""
    text = (ROOT / "koord_numa" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "(.*)"', text)
    if found is None:
        raise SystemExit("koord_numa/__init__.py has no version")
    return found[1]


def write_archive(path: Path) -> None:
    """Without times and owners of this machine."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for source, mode in CONTENT:
            entry = archive.gettarinfo(source, source.name)
            entry.mtime, entry.mode = 0, mode
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            with source.open("rb") as file:
                archive.addfile(entry, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
