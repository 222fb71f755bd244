"""Tables of one machine in the shape that picking CPUs needs, made once per machine. They say nothing about what is free."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from koord_numa.core.machine import Core, Machine

_REMEMBERED: Final = 1024
"""Distinct machines in a cluster are few: nodes come in models."""


@dataclass(frozen=True, slots=True)
class Place:
    """A NUMA node or a socket: its CPUs, its cores ascending by id, and the socket around it (itself for a socket)."""

    id: int
    bits: int
    cores: tuple[int, ...]  # CPU bits of each
    socket: int
    socket_bits: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where cores sit. ``uniform``: every core has the same number of CPUs."""

    numas: tuple[Place, ...]  # only those with CPUs, ascending by id
    sockets: tuple[Place, ...]
    cores: tuple[tuple[int, int, int], ...]  # (CPU bits, NUMA id, socket id), ascending by (socket, core id, NUMA id)
    core_of: dict[int, int]  # CPU -> position in cores
    uniform: bool
    smt: bool  # some core has more than one CPU


@lru_cache(maxsize=_REMEMBERED)
def layout_of(machine: Machine) -> Layout:
    """The tables of this machine."""
    cores = sorted(machine.cores, key=lambda core: (core.socket, core.id, core.numa))
    socket_of: dict[int, int] = {}
    for core in cores:
        socket_of.setdefault(core.numa, core.socket)  # a NUMA node across sockets counts with the lower one
    sizes = {core.bits.bit_count() for core in cores}
    return Layout(
        numas=tuple(
            Place(
                id=numa,
                bits=machine.numa_bits[numa],
                cores=_bits(core for core in cores if core.numa == numa),
                socket=socket,
                socket_bits=machine.socket_bits[socket],
            )
            for numa, socket in sorted(socket_of.items())
        ),
        sockets=tuple(
            Place(
                id=socket,
                bits=bits,
                cores=_bits(core for core in cores if core.socket == socket),
                socket=socket,
                socket_bits=bits,
            )
            for socket, bits in machine.socket_bits.items()
        ),
        cores=tuple((core.bits, core.numa, core.socket) for core in cores),
        core_of={
            cpu.id: position for position, core in enumerate(cores) for cpu in machine.cpus if core.bits >> cpu.id & 1
        },
        uniform=len(sizes) <= 1,
        smt=any(size > 1 for size in sizes),
    )


def _bits(cores: Iterable[Core]) -> tuple[int, ...]:
    return tuple(core.bits for core in cores)
