"""
Reading of single sysfs files: numbers, CPU lists and CPU masks in the kernel's formats, and one error for all that is wrong.

A file that is absent is ``None``, as kernels differ in what they have. A file that is there and cannot be read or understood is a
``SysfsError``: half of a machine must not look like a machine.
"""

import errno
import re
from pathlib import Path
from typing import Final

from koord_numa.core.cpuset import MAX_CPU, CpuSet

LONGEST: Final = 1 << 16
"""Bytes read of one file. The largest files of interest are meminfo and distances, a few KiB."""

# At most 2,048 digits: 8,192 CPUs, the largest NR_CPUS that kernels are built with.
_MASK: Final = re.compile(r"[0-9a-f]{1,2048}(?:,[0-9a-f]{1,8})*", re.ASCII | re.IGNORECASE)
_NUMBER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
# ENODEV and ENXIO: the attribute exists and its device does not, which some drivers answer instead of hiding the file.
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


class SysfsError(Exception):
    """A file or a directory that makes the description of the machine unusable; the text names it and what is wrong."""


class Sysfs:
    """
    The tree under one root, usually ``/sys``.

    ``present`` is set as soon as it is known; a set of CPUs that has others is an error then.
    The kernel ends every attribute with a newline. Where some files of a tree end so and others do not, those have been cut short;
    ``check_complete`` says so. A tree whose files all lack it was written by something else, and is taken as it is.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.present: CpuSet | None = None
        self._ended = False
        self._open_end: Path | None = None

    def text(self, *parts: str) -> str | None:
        """The contents without surrounding white space, ``None`` when there is no such file."""
        path = self.root.joinpath(*parts)
        try:
            # Bytes, not text: sysfs has attributes with stray bytes, and the encoding is checked below with the path in the
            # message.
            with path.open("rb") as file:
                raw = file.read(LONGEST)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise SysfsError(f"{path} cannot be read: {error.strerror or error}") from None
        content = raw.replace(b"\0", b"")  # some kernels end short attributes with a NUL
        # Empty files say nothing about how this tree ends its lines.
        if content.strip():
            if content.endswith(b"\n"):
                self._ended = True
            elif self._open_end is None:
                self._open_end = path
        try:
            return content.decode("ascii").strip()
        except UnicodeDecodeError:
            raise SysfsError(f"{path} is no text") from None

    def check_complete(self) -> None:
        """Raises ``SysfsError`` when a file that was read ends in the middle of a line while others do not."""
        if self._ended and self._open_end is not None:
            raise SysfsError(f"{self._open_end} ends in the middle of a line")

    def number(self, *parts: str) -> int | None:
        """A decimal number, ``None`` when there is no such file."""
        text = self.text(*parts)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text):
            raise self.error(f"{text[:40]!r} is not a number", *parts)
        return int(text)

    def cpu_list(self, *parts: str) -> CpuSet | None:
        """A list such as ``0-3,8``, ``None`` when there is no such file."""
        text = self.text(*parts)
        if text is None:
            return None
        try:
            return CpuSet.parse(text)
        except ValueError as error:
            raise self.error(str(error), *parts) from None

    def cpu_mask(self, *parts: str) -> CpuSet | None:
        """A mask such as ``00000000,0000000f``, ``None`` when there is no such file."""
        text = self.text(*parts)
        if text is None:
            return None
        if not _MASK.fullmatch(text):
            raise self.error(f"{text[:40]!r} is not a mask of CPUs", *parts)
        # Words are printed with leading zeros, so that joining them gives the whole number.
        bits = int(text.replace(",", ""), 16)
        if bits.bit_length() > MAX_CPU + 1:
            raise self.error(f"a CPU above {MAX_CPU} is set", *parts)
        return CpuSet(bits)

    def cpus(self, folder: tuple[str, ...], list_name: str, mask_name: str, among: CpuSet) -> CpuSet | None:
        """
        Those of ``among`` in a set that newer kernels show as list and mask, older ones as mask only; ``None`` without either.

        Raises ``SysfsError`` when the two differ on a CPU of ``among``: on offline ones they may.
        """
        listed, masked = self.cpu_list(*folder, list_name), self.cpu_mask(*folder, mask_name)
        if listed is not None and masked is not None and listed & among != masked & among:
            raise self.error(f"says {listed}, and {mask_name} says {masked}", *folder, list_name)
        found = masked if listed is None else listed
        if found is not None and self.present is not None and not found <= self.present:
            raise self.error(f"names CPUs {found - self.present}, which the machine does not have", *folder)
        return None if found is None else found & among

    def numbered(self, prefix: str, *parts: str) -> list[int]:
        """The numbers of the entries ``prefix<number>`` of a directory, ascending; none when there is no such directory."""
        return sorted(
            int(name.removeprefix(prefix))
            # isdecimal and isascii: `isdecimal` alone accepts digits of other scripts, which int() would take too.
            for name in self.names(*parts)
            if name.startswith(prefix) and name.removeprefix(prefix).isdecimal() and name.isascii()
        )

    def names(self, *parts: str) -> list[str]:
        """The names in a directory, ascending; none when there is no such directory."""
        path = self.root.joinpath(*parts)
        try:
            return sorted(entry.name for entry in path.iterdir())
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise SysfsError(f"{path} cannot be read: {error.strerror or error}") from None

    def error(self, what: str, *parts: str) -> SysfsError:
        """A complaint about one file."""
        return SysfsError(f"{self.root.joinpath(*parts)}: {what}")
