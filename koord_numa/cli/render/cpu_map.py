"""Map of the CPUs of a machine for terminals: a symbol and a color per pod."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from string import ascii_letters, digits
from typing import Final

from rich.text import Text

from koord_numa.core.cpu_topology import Core
from koord_numa.core.cpuset import CpuSet
from koord_numa.view.drawing import Drawing, NumaBox

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
"""Number of cores per visual group."""


def lines(drawing: Drawing, width: int = 100) -> Iterator[Text]:
    """Yield the lines with the CPUs of each NUMA node, then the legend. ``width`` is the line width in characters."""
    cells = _cells(drawing)
    for socket in drawing.sockets():
        for numa in socket.numa:
            yield from _numa_lines(drawing, numa, socket.id, cells, width)
    yield from _legend(drawing)


def _cells(drawing: Drawing) -> dict[int, tuple[str, str]]:
    """Return the symbol and style of each CPU."""
    cells = {}
    for cpu in drawing.machine.by_id:
        holders = drawing.holders_of(cpu)
        if len(holders) > 1:
            cells[cpu] = (_SHARED, "bold white on red")
        elif holders:
            cells[cpu] = (_symbol(holders[0]), _style(holders[0]))
        else:
            cells[cpu] = (_RESERVED if cpu in drawing.reserved else _FREE, "dim")
    return cells


def _numa_lines(
    drawing: Drawing, numa: NumaBox, socket: int | None, cells: Mapping[int, tuple[str, str]], width: int
) -> Iterator[Text]:
    title = f"NUMA {numa.id}"
    if socket is not None:
        title += f"  socket {socket}"
    title += f"  {numa.free} of {numa.cpus} CPUs free"
    if note := drawing.notes.get(numa.id, ""):
        title += f"; {note}"
    yield Text(title, style="bold")
    cores = sorted((core for cache in numa.caches for core in cache.cores), key=lambda core: (core.id, core.socket))
    # A core takes two columns and each group one more. Lines contain whole groups, so that they are comparable.
    per_line = max(_GROUP, (width - 8) * _GROUP // (2 * _GROUP + 1) // _GROUP * _GROUP)
    for start in range(0, len(cores), per_line):
        yield from _core_lines(cores[start : start + per_line], cells)


def _legend(drawing: Drawing) -> Iterator[Text]:
    for index, holder in enumerate(drawing.holders):
        line = Text("  ")
        line.append(_symbol(index), style=_style(index))
        line.append(f" {holder.name}")
        line.append(f"  {holder.cpus}", style="bold")
        if holder.note:
            line.append(f"  {holder.note}", style="dim")
        yield line
    keys = f"  {_FREE} free"
    if drawing.reserved:
        keys += f"   {_RESERVED} reserved"
    threads = max((core.bits.bit_count() for core in drawing.machine.cores), default=0)
    if threads > 1:
        keys += f"   {', '.join(f't{row}' for row in range(threads))}: threads of a core"
    yield Text(keys, style="dim")


def _core_lines(cores: Sequence[Core], cells: Mapping[int, tuple[str, str]]) -> Iterator[Text]:
    """Yield one line per hardware thread, after a line with the first CPU id of each group of cores."""
    threads = [list(CpuSet(core.bits)) for core in cores]
    head = "  cpu   "
    for index in range(0, len(threads), _GROUP):
        head += f"{threads[index][0]:<{2 * _GROUP + 1}}"
    yield Text(head.rstrip(), style="dim")
    # Cores of one machine may have different numbers of threads. Smaller cores leave a gap.
    for row, cpus in enumerate(zip_longest(*threads)):
        line = Text(f"  t{row:<4} ", style="dim")
        for index, cpu in enumerate(cpus):
            symbol, style = cells[cpu] if cpu is not None else (" ", "")
            line.append(symbol, style=style)
            line.append("  " if index % _GROUP == _GROUP - 1 else " ")
        line.rstrip()
        yield line


def _symbol(index: int) -> str:
    return _SYMBOLS[index % len(_SYMBOLS)]


def _style(index: int) -> str:
    return _STYLES[index % len(_STYLES)]
