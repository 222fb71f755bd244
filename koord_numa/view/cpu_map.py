"""A machine as a picture for terminals: one column a core, one letter a pod, a frame per NUMA node. It decides nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from string import ascii_letters, digits
from typing import Final

from rich.text import Text

from koord_numa.core.cpu_topology import Core, CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet

_SYMBOLS: Final = ascii_letters[26:] + ascii_letters[:26] + digits
_STYLES: Final = (
    "cyan",
    "green",
    "yellow",
    "magenta",
    "blue",
    "red",
    "bright_cyan",
    "bright_green",
    "bright_yellow",
    "bright_magenta",
)
_FREE, _RESERVED, _SHARED = "·", "#", "*"
_GROUP: Final = 4
"""Cores stand in groups of four, so that a reader can count them."""


@dataclass(frozen=True, slots=True)
class CpuHolder:
    """Who holds which CPUs; ``note`` goes into the legend."""

    name: str
    cpus: CpuSet
    note: str = ""


@dataclass(frozen=True, slots=True)
class CpuMap:
    """One machine and its owners. A CPU of two owners is drawn as ``*``: that must never happen, so it must be visible."""

    machine: CpuTopology
    owners: Sequence[CpuHolder] = ()
    reserved: CpuSet = EMPTY
    shared: Mapping[int, str] = field(default_factory=dict)  # NUMA id -> what else it holds, in words

    def lines(self, width: int = 100) -> Iterator[Text]:
        """The picture, then its legend. ``width`` is the number of characters of a line."""
        cells = self._cells()
        for numa in self.machine.numa_ids:
            yield from self._numa_lines(numa, cells, width)
        yield from self._legend()

    def _cells(self) -> dict[int, tuple[str, str]]:
        """Per CPU its symbol and style."""
        cells = {cpu.id: (_FREE, "dim") for cpu in self.machine.cpus}
        cells.update((cpu, (_RESERVED, "dim")) for cpu in self.reserved if cpu in cells)
        for index, owner in enumerate(self.owners):
            for cpu in owner.cpus:
                free = cells.get(cpu, (_FREE, ""))[0] in (_FREE, _RESERVED)
                cells[cpu] = (_symbol(index), _style(index)) if free else (_SHARED, "bold white on red")
        return cells

    def _numa_lines(self, numa: int, cells: Mapping[int, tuple[str, str]], width: int) -> Iterator[Text]:
        cores = [core for core in self.machine.cores if core.numa == numa]
        bits = self.machine.numa_bits[numa]
        held = CpuSet(bits & _union(owner.cpus.bits for owner in self.owners))
        kept = CpuSet(bits & self.reserved.bits) - held
        sockets = sorted({core.socket for core in cores})
        title = f"NUMA {numa}"
        if sockets:
            title += f"  socket {', '.join(map(str, sockets))}"
        title += f"  {len(CpuSet(bits)) - len(held) - len(kept)} of {len(CpuSet(bits))} CPUs free"
        if note := self.shared.get(numa, ""):
            title += f"; {note}"
        yield Text(title, style="bold")
        per_line = max(_GROUP, (width - 8) * _GROUP // (2 * _GROUP + 1) // _GROUP * _GROUP)
        for start in range(0, len(cores), per_line):
            yield from _core_lines(cores[start : start + per_line], cells)

    def _legend(self) -> Iterator[Text]:
        for index, owner in enumerate(self.owners):
            line = Text("  ")
            line.append(_symbol(index), style=_style(index))
            line.append(f" {owner.name}")
            line.append(f"  {owner.cpus}", style="bold")
            if owner.note:
                line.append(f"  {owner.note}", style="dim")
            yield line
        keys = f"  {_FREE} free"
        if self.reserved:
            keys += f"   {_RESERVED} reserved"
        yield Text(keys, style="dim")


def _core_lines(cores: Sequence[Core], cells: Mapping[int, tuple[str, str]]) -> Iterator[Text]:
    """One line per hardware thread; the first CPU id of each group of cores stands above it."""
    threads = [list(CpuSet(core.bits)) for core in cores]
    head = "  cpu   "
    for index in range(0, len(threads), _GROUP):
        head += f"{threads[index][0]:<{2 * _GROUP + 1}}"
    yield Text(head.rstrip(), style="dim")
    for row, cpus in enumerate(zip_longest(*threads)):
        line = Text(f"  t{row:<4} ", style="dim")
        for index, cpu in enumerate(cpus):
            symbol, style = cells[cpu] if cpu is not None else (" ", "")
            line.append(symbol, style=style)
            line.append("  " if index % _GROUP == _GROUP - 1 else " ")
        line.rstrip()
        yield line


def _union(parts: Iterator[int]) -> int:
    bits = 0
    for part in parts:
        bits |= part
    return bits


def _symbol(index: int) -> str:
    return _SYMBOLS[index % len(_SYMBOLS)]


def _style(index: int) -> str:
    return _STYLES[index % len(_STYLES)]
