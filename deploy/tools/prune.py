# noqa: INP001  (a script that the image is built with; a test loads it by its path)
"""
Remove the files of an installation that no command needs: ``python prune.py PREFIX``.

The image and the kubectl plugin have the same list. Modules that a command imports stay. Byte code is removed where it is large and rarely
imported. Shared libraries lose their symbols if ``strip`` is installed.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

USELESS: Final = re.compile(
    r"(^|/)(tests?|include|f2py|numpy/testing|numpy/_pyinstaller|pip|setuptools|_distutils_hack"
    r")/|(^|/)pygments/lexers/(?!__init__|python|_mapping)|numpy/_core/(_simd|_\w*_tests)\.|\.(pyi|pxd|pyx|a|h|c|cpp)$"
)
"""Tests, headers, type stubs, build tools, and lexers of other languages than Python."""

RARELY_IMPORTED: Final = re.compile(r"(^|/)kubernetes_asyncio/client/(models|api)/__pycache__/")
"""Byte code of the generated client, which only an ``auth-provider`` of a kubeconfig imports."""


def prune(prefix: Path) -> int:
    """Remove the files below each ``site-packages`` of the prefix. Returns the number of bytes that are saved."""
    before = size(prefix)
    for packages in sorted(prefix.rglob("site-packages")):
        for path in sorted(packages.rglob("*")):
            name = path.relative_to(packages).as_posix()
            # The modules of byte code have the names of their sources.
            source = re.sub(r"__pycache__/([^/]+)\.cpython-\d+\.pyc$", r"\1.py", name)
            if path.is_file() and (RARELY_IMPORTED.search(name) or USELESS.search(source)):
                path.unlink()
        for folder in sorted(packages.rglob("*"), reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    strip(prefix)
    return before - size(prefix)


def strip(prefix: Path) -> None:
    """
    Remove the symbols of shared libraries, which only debuggers read.

    Libraries in ``NAME.libs``, which auditwheel has moved, stay: ``strip`` may leave them unloadable.
    """
    program = shutil.which("strip")
    files = [path for path in prefix.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    libraries = [str(path) for path in files if path.parent.suffix != ".libs"]
    if program is not None and libraries:
        subprocess.run([program, "--strip-unneeded", *libraries], check=True)  # noqa: S603  (names of files)


def size(folder: Path) -> int:
    """Return the bytes of the files of a folder, which is what a layer of an image counts."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (given := Path(sys.argv[1])).is_dir():
        raise SystemExit("usage: prune.py PREFIX")
    saved = prune(given)
    sys.stdout.write(f"{saved / 1e6:.0f} MB removed, {size(given) / 1e6:.0f} MB left\n")
