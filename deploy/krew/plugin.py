# noqa: INP001  (a script of the plugin's archive)
"""
Run koord-numa from the modules of the plugin's archive. No other package is needed.

The modules are unpacked once for each version of the plugin and of Python, beside this file or in the user's cache.
"""

import hashlib
import lzma
import os
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODULES = HERE / "modules.tar.xz"
"""Folders ``all`` and ``cp311`` to ``cp314``."""
DIGEST = HERE / "modules.sha256"


def main() -> None:
    """Run the command line, or the completion under the name that kubectl uses for it."""
    name = sys.argv.pop(1)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    root = modules(tag)
    # Only the modules of the archive: those of the user may have other versions.
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    kept = [path for path in sys.path if path.endswith(".zip") or any(path.startswith(part) for part in standard)]
    sys.path[:] = [str(root / "all"), str(root / tag), *(path for path in kept if "-packages" not in path)]
    sys.argv[0] = name
    if name.startswith("kubectl_complete"):
        from koord_numa.cli.kubectl_completion import complete  # noqa: PLC0415  (found only now)

        complete()
    else:
        from koord_numa.cli import main as command_line  # noqa: PLC0415  (found only now)

        command_line(prog_name="kubectl koord-numa")


def modules(tag: str) -> Path:
    """Return the folder of the unpacked modules for a version of Python."""
    digest = DIGEST.read_text(encoding="ascii").strip()
    identity = f"{digest[:16]}-{tag}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "koord-numa"
    for folder in (HERE, cache):
        if (folder / f"modules-{identity}").is_dir():
            return folder / f"modules-{identity}"
    for folder in (HERE, cache):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".modules-") as unpacked:
                unpack(Path(unpacked), tag)
                ready = folder / f"modules-{identity}"
                try:
                    Path(unpacked).rename(ready)
                except OSError:
                    if not ready.is_dir():  # another process was faster
                        raise
                else:
                    Path(unpacked).mkdir()  # to be removed at the end of the block
            return ready
        except OSError as error:
            problem = error
    raise SystemExit(f"kubectl koord-numa cannot unpack its modules: {problem}")


def unpack(folder: Path, tag: str) -> None:
    """Unpack the modules for a version of Python. Raises ``OSError``."""

    def wanted(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        for member in archive:
            top = member.name.partition("/")[0]
            found.add(top)
            if top in ("all", tag):
                yield member

    with MODULES.open("rb") as content:
        if hashlib.file_digest(content, "sha256").hexdigest() != DIGEST.read_text(encoding="ascii").strip():
            raise SystemExit(f"{MODULES} is damaged; install the plugin again")
    found: set[str] = set()
    # Not in Python 3.11.2, which Debian 12 has.
    safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with lzma.open(MODULES) as raw, tarfile.open(fileobj=raw, mode="r|") as archive:
            for member in wanted(archive):
                archive.extract(member, folder, set_attrs=False, **safely)
    except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
        raise SystemExit(f"{MODULES} cannot be unpacked: {error}") from None
    if tag not in found:
        versions = ", ".join(f"{it[2]}.{it[3:]}" for it in sorted(found - {"all"}))
        raise SystemExit(f"kubectl koord-numa has modules for Python {versions}, not for {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
