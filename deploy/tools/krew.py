# noqa: INP001  (a script that make runs; a test loads it by its path)
"""
Write the archives of the kubectl plugin, one per platform, and its Krew manifest: ``make krew``.

An archive needs nothing but a Python of ``PYTHONS``: it contains the package and its dependencies for every one of them, with the
versions and hashes of ``deploy/requirements.lock``. The archive is the same to the byte for the same content, so that a published checksum
stays true.
"""

import argparse
import gzip
import hashlib
import io
import lzma
import re
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from prune import USELESS  # the folder of this script is on the path

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "krew"
LOCK: Final = ROOT / "deploy" / "requirements.lock"
MANIFEST: Final = "koord-numa.yaml"
FILES: Final = ((FOLDER / "kubectl-koord_numa", 0o755), (FOLDER / "plugin.py", 0o644), (ROOT / "LICENSE", 0o644))

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")

PLATFORMS: Final[Mapping[str, tuple[str, ...]]] = {
    "linux-amd64": tuple(f"manylinux{it}_x86_64" for it in ("_2_28", "_2_27", "_2_17", "2014")),
    "linux-arm64": tuple(f"manylinux{it}_aarch64" for it in ("_2_28", "_2_27", "_2_17", "2014")),
    "darwin-amd64": ("macosx_14_0_x86_64",),
    "darwin-arm64": ("macosx_14_0_arm64",),
}
"""Platforms of Krew, and the tags of wheels that run there: glibc 2.28 or macOS 14."""

PACKAGES: Final = (
    *("annotated-types", "cachetools", "click", "google-re2", "jinja2", "markdown-it-py", "markupsafe", "mdurl", "msgspec", "numpy"),
    *("orjson", "pydantic", "pydantic-core", "pygments", "pyyaml", "rich", "typing-extensions", "typing-inspection", "xxhash"),
)  # fmt: skip
"""The packages that the commands for clients import. Those of ``run``, ``node-agent``, ``sandbox`` and ``demo`` are left out."""

UNUSED: Final = re.compile(
    r"\.dist-info/(?!METADATA$)|^numpy/(random|fft|polynomial|ma|distutils)/|^pydantic/(mypy\.py|v1/)|/conftest\.py$"
    r"|^koord_numa/sandbox/data/"
)
"""Metadata of wheels, parts of packages that they import on use and no command uses, and the data of the demo."""

SEGMENT: Final = 56
"""Bytes of a program header of ELF."""

WORTH: Final = 0.95
"""A library keeps its symbols if they are a smaller part than the rest of it."""

DICTIONARY: Final = 2**27
"""Bytes of the dictionary of the compression. Files that are equal for several versions of Python are stored once."""


def main(destination: Path, repository: str, platforms: list[str], wheels: Path | None, preset: int) -> None:
    """``repository`` is the owner and name on GitHub. ``wheels`` has a folder per version of Python; without it they are downloaded."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise SystemExit(f"the repository is OWNER/NAME, found {repository!r}")
    destination.mkdir(parents=True, exist_ok=True)
    before, _, block = (FOLDER / MANIFEST).read_text(encoding="utf-8").partition("\n")[2].partition("    - selector")
    text = before
    for platform in platforms:
        archive = destination / f"kubectl-koord_numa-{platform}.tar.gz"
        with TemporaryDirectory() as folder:
            write_archive(archive, packed(platform, wheels or downloaded(platform, Path(folder)), preset))
        system, _, machine = platform.partition("-")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        values = {"OS": system, "ARCHIVE": archive.name, "ARCH": machine, "SHA256": digest}
        text += re.sub(r"\b(OS|ARCHIVE|ARCH|SHA256)\b", lambda found: values[found[0]], f"    - selector{block}")  # noqa: B023  (used at once)
    values = {"VERSION": version(), "REPOSITORY": repository}
    filled = re.sub("|".join(values), lambda found: values[found[0]], text)
    (destination / MANIFEST).write_text(filled, encoding="utf-8")


def version() -> str:
    """The version of the package, which is written in one place."""
    text = (ROOT / "koord_numa" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "(.*)"', text)
    if found is None:
        raise SystemExit("koord_numa/__init__.py has no version")
    return found[1]


def requirements() -> str:
    """The entries of the lock file for ``PACKAGES``, with their hashes and without markers of other platforms and Pythons."""
    entries: dict[str, str] = {}
    for name, pinned, hashes in re.findall(
        r"^([\w.-]+)(==[^ ]+)(?: ; [^\\\n]+)? (\\\n(?:    --hash=\S+(?: \\)?\n)+)",
        LOCK.read_text(encoding="utf-8"),
        re.MULTILINE,
    ):
        # Of several versions the first, which is the oldest: it runs on all Pythons, and one version of NumPy has equal libraries for all.
        entries.setdefault(name.lower(), f"{name}{pinned} {hashes}")
    if missing := [name for name in PACKAGES if name not in entries]:
        raise SystemExit(f"{LOCK} has no {', '.join(missing)}")
    return "".join(entries[name] for name in PACKAGES)


def downloaded(platform: str, folder: Path) -> Path:
    """Download the wheels for all versions of Python, verified by their hashes. Returns the folder with a folder for each."""
    wanted = folder / "requirements.txt"
    wanted.write_text(requirements(), encoding="utf-8")
    for python in PYTHONS:
        tag = f"cp{python.replace('.', '')}"
        options = ["--python-version", python, "--implementation", "cp", "--abi", tag, "--abi", "abi3", "--abi", "none"]
        options += [part for name in PLATFORMS[platform] for part in ("--platform", name)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--require-hashes", "-r", str(wanted), "-d", str(folder / tag), *options]
        subprocess.run(command, check=True)  # noqa: S603  (pip, with our own arguments)
    return folder


def packed(platform: str, wheels: Path, preset: int) -> bytes:
    """The modules for all versions of Python as an archive. Modules that are equal for all are in the folder ``all``."""
    files = {f"all/{name}": content for name, content in own_files()}
    for folder in sorted(wheels.glob("cp3*")):
        for wheel in sorted(folder.glob("*.whl")):
            top = "all" if wheel.name.endswith("-none-any.whl") else folder.name
            files.update((f"{top}/{name}", content) for name, content in wheel_files(wheel))
    if not any(name.startswith("cp3") for name in files):
        raise SystemExit(f"{wheels} has no wheels for {platform}")
    # Equal files next to each other, so that the dictionary holds them.
    order = sorted(files, key=lambda name: (name.partition("/")[2], name))
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in order:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(files[name]), 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    size = max(2**16, min(DICTIONARY, 1 << (len(raw.getbuffer()) - 1).bit_length()))
    return lzma.compress(raw.getvalue(), filters=[{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": size}])


def own_files() -> Iterator[tuple[str, bytes]]:
    """The package and its data files."""
    for path in sorted((ROOT / "koord_numa").rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and not path.name.endswith("_pb2.py"):
            name = str(path.relative_to(ROOT))
            if not UNUSED.search(name):
                yield name, path.read_bytes()


def wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """The useful files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith("/") and not USELESS.search(name) and not UNUSED.search(name):
                yield name, without_symbols(archive.read(name))


def without_symbols(content: bytes) -> bytes:
    """
    Remove what an ELF library has after its loaded segments: symbols and debug information, which some wheels contain.

    Unlike ``strip``, it works for all architectures, moves nothing, and has the same result on every machine.
    """
    if content[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
        return content
    table, count = struct.unpack_from("<Q", content, 32)[0], struct.unpack_from("<H", content, 56)[0]
    segments = [struct.unpack_from("<IIQQQQ", content, table + number * SEGMENT) for number in range(count)]
    end = max(table + count * SEGMENT, *(offset + size for _, _, offset, _, _, size in segments))
    # Without a table of sections, which the loader does not read: its offset, entry size, entries, and index of names.
    kept = bytearray(content[:end])
    kept[40:48], kept[58:64] = bytes(8), bytes(6)
    return bytes(kept) if len(kept) < WORTH * len(content) else content


def write_archive(path: Path, modules: bytes) -> None:
    """Without times and owners of this machine."""
    content = [(source.name, mode, source.read_bytes()) for source, mode in FILES]
    content += [
        ("modules.sha256", 0o644, hashlib.sha256(modules).hexdigest().encode()),
        ("modules.tar.xz", 0o644, modules),
    ]
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed_file,
        tarfile.open(fileobj=packed_file, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, mode, data in content:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("destination", type=Path)
    parser.add_argument("repository", help="owner and name on GitHub, where releases are")
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="default: all")
    parser.add_argument(
        "--wheels", type=Path, help="a folder with the folders cp311 to cp314 of wheels, instead of a download"
    )
    parser.add_argument("--preset", type=int, default=6, help="of the compression; 0 is fast")
    given = parser.parse_args()
    main(given.destination, given.repository, given.platform or list(PLATFORMS), given.wheels, given.preset)
