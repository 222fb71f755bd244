"""Drawing of one machine: sockets, NUMA nodes, caches, cores and threads as data, and as a self-contained SVG image."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Final

from koord_numa.core.cpu_topology import Core, CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field


class CpuHolder(ValueObject):
    """
    A pod with exclusive CPUs. ``note`` is shown in the legend.

    ``observed`` are the CPUs on which the pod runs as reported by the node agent, or None without a report.
    """

    name: str
    cpus: CpuSet
    note: str = ""
    observed: CpuSet | None = None


class CacheBox(ValueObject):
    """The cores behind one last-level cache of one NUMA node."""

    id: int
    cores: tuple[Core, ...]


class NumaBox(ValueObject):
    """
    One NUMA node on one socket.

    ``cpus`` is the number of logical CPUs, ``free`` the number of CPUs that are neither held nor reserved.
    """

    id: int
    caches: tuple[CacheBox, ...]
    cpus: int
    free: int


class SocketBox(ValueObject):
    """One socket. ``id`` is None for NUMA nodes without CPUs, whose socket is unknown."""

    id: int | None
    numa: tuple[NumaBox, ...]


class Drawing(ValueObject):
    """
    One machine, its pods, and the reserved CPUs. ``notes`` contains additional text per NUMA node, by id.

    Every renderer marks a CPU with two holders, because such a conflict must be visible.
    """

    machine: CpuTopology
    holders: Sequence[CpuHolder] = ()
    reserved: CpuSet = EMPTY
    notes: Mapping[int, str] = value_field(default_factory=dict)

    def holders_of(self, cpu: int) -> list[int]:
        """Return the positions in ``holders`` of the pods that hold the CPU."""
        return [at for at, holder in enumerate(self.holders) if holder.cpus.bits >> cpu & 1]

    def observed_on(self, cpu: int) -> list[int] | None:
        """Return the positions of the pods observed on the CPU, or None if no CPUs are reported."""
        reported = [(at, one.observed) for at, one in enumerate(self.holders) if one.observed is not None]
        return [at for at, cpus in reported if cpus.bits >> cpu & 1] if reported else None

    def sockets(self) -> Iterator[SocketBox]:
        """Yield the sockets with their NUMA nodes, ascending. NUMA nodes without CPUs come last, without a socket."""
        socket_of = {core.numa: core.socket for core in reversed(self.machine.cores)}
        placed = sorted(self.machine.numa_ids, key=lambda numa: (numa not in socket_of, socket_of.get(numa, 0), numa))
        for socket, ids in groupby(placed, key=socket_of.get):
            yield SocketBox(socket, tuple(self._numa(numa) for numa in ids))

    def _numa(self, numa: int) -> NumaBox:
        cores = sorted((core for core in self.machine.cores if core.numa == numa), key=lambda core: core.uncore)
        caches = tuple(
            CacheBox(cache, tuple(sorted(group, key=lambda core: (core.id, core.socket))))
            for cache, group in groupby(cores, key=lambda core: core.uncore)
        )
        bits = self.machine.numa_bits[numa]
        taken = self.reserved.bits
        for holder in self.holders:
            taken |= holder.cpus.bits
        return NumaBox(numa, caches, bits.bit_count(), (bits & ~taken).bit_count())


# Rendering of a drawing as a self-contained SVG image: nested boxes as in hwloc's lstopo, one color per pod.
#
# The image contains no script and no external font.

CELL: Final = (30, 20)
"""Width and height of one logical CPU, in pixels."""

_GAP: Final = 6
_HEAD: Final = 20
_CORES_A_ROW: Final = 8
_ROWS_OF_LEGEND: Final = 18


class _Box(MutableObject):
    """A box of known size. Its elements are positioned relative to its upper left corner."""

    width: float
    height: float
    elements: list[str] = value_field(default_factory=list)

    def put(self, other: "_Box", x: float, y: float) -> None:
        """Draw another box inside this box and grow to include it."""
        self.elements.append(f'<g transform="translate({x:g} {y:g})">{"".join(other.elements)}</g>')
        self.width = max(self.width, x + other.width)
        self.height = max(self.height, y + other.height)


def colour(index: int) -> str:
    """
    Return the color of the pod at this position.

    Hues are a golden angle apart and dark enough for white text (contrast 4.5 to 1).
    """
    return f"hsl({round(index * 137.508) % 360} 62% 27%)"


def svg(drawing: Drawing, title: str) -> str:
    """Return the image of one node. ``title`` is its heading and its accessible name."""
    page = _Box(0, 0)
    page.put(_text(title, size=16, bold=True), _GAP, 0)
    x: float = _GAP
    for socket in drawing.sockets():
        name = "no socket" if socket.id is None else f"socket {socket.id}"
        box = _stack(name, [_numa(drawing, numa) for numa in socket.numa], "#f1f3f5")
        page.put(box, x, _HEAD + _GAP)
        x += box.width + _GAP
    page.put(_legend(drawing), _GAP, page.height + 2 * _GAP)
    width, height = page.width + _GAP, page.height + _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label={_quoted(title)} width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="system-ui, sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(page.elements)}</svg>\n'
    )


def _numa(drawing: Drawing, numa: NumaBox) -> _Box:
    note = drawing.notes.get(numa.id, "")
    name = f"NUMA {numa.id}: {numa.free} of {numa.cpus} CPUs free{f'; {note}' if note else ''}"
    return _stack(name, [_cache(drawing, cache, len(numa.caches) > 1) for cache in numa.caches], "#ffffff")


def _cache(drawing: Drawing, cache: CacheBox, named: bool) -> _Box:
    rows = [cache.cores[at : at + _CORES_A_ROW] for at in range(0, len(cache.cores), _CORES_A_ROW)]
    boxes = [_row([_core(drawing, core) for core in row]) for row in rows]
    return _stack(f"L3 {cache.id}" if named else "", boxes, "#ffffff")


def _core(drawing: Drawing, core: Core) -> _Box:
    box = _Box(0, 0)
    for at, cpu in enumerate(CpuSet(core.bits)):
        box.put(_cpu(drawing, cpu), 0, at * CELL[1])
    box.elements.append(f'<rect width="{box.width:g}" height="{box.height:g}" fill="none" stroke="#495057"/>')
    return box


def _cpu(drawing: Drawing, cpu: int) -> _Box:
    holders = drawing.holders_of(cpu)
    names = " and ".join(drawing.holders[at].name for at in holders)
    # A CPU with two holders is an error and has a color that no pod has.
    if len(holders) > 1:
        fill, ink = "#8c1d18", "#ffffff"
    elif holders:
        fill, ink = colour(holders[0]), "#ffffff"
    else:
        fill, ink = ("#ced4da" if cpu in drawing.reserved else "#ffffff"), "#212529"
    state = names or ("reserved" if cpu in drawing.reserved else "free")
    observed = drawing.observed_on(cpu)
    differs = observed is not None and observed != holders
    if observed is not None and differs:
        state += f"; observed: {' and '.join(drawing.holders[at].name for at in observed) or 'free'}"
    ring = ' stroke="#ffb300" stroke-width="2"' if differs else ' stroke="#dee2e6"'
    element = (
        f"<g><title>CPU {cpu}: {escape(state, quote=False)}</title>"
        f'<rect width="{CELL[0]}" height="{CELL[1]}" fill="{fill}"{ring}/>'
        f'<text x="{CELL[0] / 2:g}" y="14" text-anchor="middle" fill="{ink}" font-size="11">{cpu}</text></g>'
    )
    return _Box(*CELL, [element])


def _legend(drawing: Drawing) -> _Box:
    box = _Box(0, 0)
    entries = [*_entries(drawing)]
    widest = max((line.width for line in entries), default=0.0)
    for at, line in enumerate(entries):
        column, row = divmod(at, _ROWS_OF_LEGEND)
        box.put(line, column * (widest + 3 * _GAP), row * _HEAD)
    return box


def _entries(drawing: Drawing) -> Iterator[_Box]:
    named = [(colour(at), f"{one.name}  {one.cpus}") for at, one in enumerate(drawing.holders)]
    for fill, text in (*named, ("#ffffff", "free"), ("#ced4da", "reserved")):
        line = _Box(14, 14, [f'<rect width="14" height="14" fill="{fill}" stroke="#495057"/>'])
        line.put(_text(text), 20, -3)
        yield line


def _stack(name: str, boxes: Sequence[_Box], fill: str) -> _Box:
    """Return a framed box with a heading and the boxes below one another."""
    inside = _Box(0, 0)
    y: float = _GAP
    if name:
        inside.put(_text(name), _GAP, 0)
        y = _HEAD + _GAP / 2
    for box in boxes:
        inside.put(box, _GAP, y)
        y += box.height + _GAP
    width, height = inside.width + _GAP, y
    frame = f'<rect width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="#adb5bd"/>'
    return _Box(width, height, [frame, *inside.elements])


def _row(boxes: Sequence[_Box]) -> _Box:
    row = _Box(0, 0)
    x = 0.0
    for box in boxes:
        row.put(box, x, 0)
        x += box.width + 3
    return row


def _text(text: str, size: int = 12, *, bold: bool = False) -> _Box:
    weight = ' font-weight="bold"' if bold else ""
    element = f'<text y="{size + 2}" fill="#212529" font-size="{size}"{weight}>{escape(text, quote=False)}</text>'
    # An estimate without font metrics: the average width of a letter in common sans-serif fonts is 0.56 em.
    return _Box(len(text) * size * 0.56, size + 4, [element])


def _quoted(text: str) -> str:
    return '"' + escape(text, quote=False).replace('"', "&quot;") + '"'
