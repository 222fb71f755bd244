"""
Keep interrupts off CPUs: the affinity of every interrupt, the kernel's default for new ones, and irqbalance's bans.

The original values are in a state file, which is written before the kernel's files. A value is restored only while it
is one that this module has written: a value of another writer replaces the original. The agent may therefore be killed
at any step, and the next run continues. The file is in a directory that a reboot empties.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from koord_numa.core.cpuset import MAX_CPU, CpuSet

logger = logging.getLogger(__name__)

STATE_FILE: Final = "interrupts.json"
DEFAULT: Final = "default"
DEFAULT_FILE: Final = "default_smp_affinity"
BALANCER: Final = "irqbalance"
TIMEOUT: Final = 0.5
"""Seconds that a round waits for irqbalance, which sleeps for its interval of 10 seconds after each change of its bans."""
LONGEST_COMMAND: Final = 499
"""Bytes: irqbalance reads a command into a buffer of 500 bytes."""
_NO_RIGHT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MASK_DIGITS: Final = 8
_KNOWN_CPUS: Final = (1 << MAX_CPU + 1) - 1  # the kernel's masks may be wider than the machine


class NoRight(Exception):
    """The agent may not change interrupts. The text has the reason."""


@dataclass(frozen=True, slots=True)
class Steering:
    """
    The result of a round.

    ``kept_off`` counts interrupts whose affinity is restricted by this agent. ``unmovable`` counts those that stay on
    quiet CPUs: the kernel permits no change (timers, queues that their driver manages), or no other CPU is left.
    ``returned`` counts those that another program has moved back. ``problem`` is the reason why interrupts may arrive.
    ``pending``: irqbalance has not answered, and the round is to be repeated soon.
    """

    kept_off: int = 0
    unmovable: int = 0
    returned: int = 0
    problem: str = ""
    pending: bool = False


@dataclass(frozen=True, slots=True)
class Saved:
    """The original value of a setting, and the values that this module has written or was about to write."""

    original: CpuSet
    written: tuple[CpuSet, ...] = ()


@dataclass(frozen=True, slots=True)
class Balancer:
    """An irqbalance that runs: its socket, the CPUs that its configuration bans, and those that this module has banned."""

    socket: str
    configured: CpuSet
    banned: CpuSet | None = None


@dataclass(frozen=True, slots=True)
class State:
    """The contents of the state file."""

    settings: Mapping[str, Saved] = field(default_factory=dict)  # by number of the interrupt, and ``DEFAULT``
    balancer: Balancer | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """A setting with its current and its wanted value. ``saved`` is the state while the change is made."""

    current: CpuSet
    wanted: CpuSet
    saved: Saved

    @property
    def restored(self) -> bool:
        return self.wanted == self.saved.original


class Interrupts:
    """
    The interrupts of a node. ``proc`` is the host's procfs, of which only ``irq`` is used, ``run`` its ``/run``.

    Without a ``state`` directory nothing is changed, because it could not be restored after a crash.
    """

    def __init__(self, proc: Path, run: Path, state: Path | None) -> None:
        self._irq = proc / "irq"
        self._sockets = run / BALANCER
        self._file = None if state is None else state / STATE_FILE
        self._state: State | None = None
        self._pending = False
        self._question: tuple[str, asyncio.Task[str]] | None = None  # to the irqbalance of a socket

    @property
    def changed(self) -> bool:
        """Return whether any setting is, or may be, changed by this module."""
        return self._load() != State()

    async def keep_off(self, quiet: CpuSet, online: CpuSet) -> Steering:
        """Keep interrupts off the ``quiet`` CPUs, and restore what earlier rounds have changed for other CPUs."""
        if not quiet and not self.changed:
            return Steering()
        if self._file is None:
            return Steering(
                problem="interrupts are not moved: without --state-dir they cannot be restored after a crash"
            )
        try:
            # irqbalance first: it would move interrupts back.
            self._pending = False
            problem = await self._ban(quiet)
            return replace(self._steer(quiet, online), problem=problem, pending=self._pending)
        except NoRight as error:
            return Steering(problem=f"interrupts are not moved: {error}")

    def _steer(self, quiet: CpuSet, online: CpuSet) -> Steering:
        saved = self._load().settings
        paths = self._paths()
        changes: dict[str, _Change] = {}
        returned = 0
        for key, path in paths.items():
            current = _read(path)
            if current is None:
                continue  # the interrupt was freed
            known = saved.get(key)
            returned += known is not None and current not in known.written and bool(current & quiet)
            changes[key] = _change(known, current, lambda base: _without(base, quiet, online))
        # The file has the new values before the kernel has: a crash at any point leaves a state that is known.
        pending = {key: one for key, one in changes.items() if one.current != one.wanted}
        kept = {key: one for key, one in changes.items() if not one.restored or key in pending}
        self._save(replace(self._load(), settings={key: one.saved for key, one in kept.items()}))
        failed = {key for key, one in pending.items() if not _write(paths[key], one.wanted)}
        # A setting that cannot be changed has its original value.
        rest = {key: one.saved for key, one in kept.items() if not one.restored and key not in failed}
        self._save(replace(self._load(), settings=rest))
        now = {key: one.current if key in failed else one.wanted for key, one in changes.items() if key != DEFAULT}
        return Steering(
            kept_off=sum(not changes[key].restored and key not in failed for key in now),
            unmovable=sum(bool(cpus & quiet) for cpus in now.values()),
            returned=returned,
        )

    # Texts instead of paths: making a thousand paths takes as long as reading the files.
    def _paths(self) -> dict[str, str]:
        try:
            numbers = sorted((entry.name for entry in os.scandir(self._irq) if entry.name.isdigit()), key=int)
        except OSError as error:
            raise NoRight(f"{self._irq}: {error.strerror}") from None
        paths = {number: f"{self._irq}/{number}/smp_affinity_list" for number in numbers}
        return {DEFAULT: f"{self._irq}/{DEFAULT_FILE}"} | paths

    async def _ban(self, quiet: CpuSet) -> str:
        """
        Add the CPUs to the bans of irqbalance's configuration, or reset the bans to it. Return the reason if that fails.

        The configuration is read once from each irqbalance. Other commands need no answer.
        """
        state = self._load()
        known = state.balancer
        if not quiet and known is None:
            return ""
        sockets = sorted(self._sockets.glob("irqbalance*.sock"), key=lambda path: path.stat().st_mtime_ns)
        try:
            if not quiet and known is not None:
                _tell(self._sockets / known.socket, "settings cpus NULL")
                self._save(replace(state, balancer=None))
            elif sockets:
                known = await self._balancer(sockets[-1])
                if known is not None and known.banned != known.configured | quiet:
                    _tell(sockets[-1], f"settings cpus {known.configured | quiet}")
                    self._save(replace(self._load(), balancer=replace(known, banned=known.configured | quiet)))
        except (FileNotFoundError, ConnectionRefusedError):
            self._save(replace(state, balancer=None))  # it has ended, and a new one starts with its configuration
        except BlockingIOError:
            self._pending = True  # it sleeps, and commands are waiting already
        except (OSError, ValueError) as error:
            return f"irqbalance moves interrupts back: {error}"
        return ""

    async def _balancer(self, path: Path) -> "Balancer | None":
        """
        Return the irqbalance of a socket with its configured bans. ``None`` if it has not answered yet.

        irqbalance ends by SIGPIPE if it answers to a closed connection, so the question is never given up.
        """
        known = self._load().balancer
        if known is not None and known.socket == path.name:
            return known
        if self._question is None or self._question[0] != path.name:
            self._question = path.name, asyncio.create_task(_ask(path, "setup"))
        task = self._question[1]
        await asyncio.wait([task], timeout=TIMEOUT)
        if not task.done():
            self._pending = True
            return None
        self._question = None
        _, _, mask = task.result().rpartition("BANNED ")
        known = Balancer(path.name, _parse_mask(mask))
        self._save(replace(self._load(), balancer=known))
        return known

    def _load(self) -> State:
        if self._state is None:
            self._state = State()
            try:
                if self._file is not None:
                    self._state = _parse_state(orjson.loads(self._file.read_bytes()))
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError, AttributeError, KeyError):
                logger.exception("%s is not readable: the original affinities are lost", self._file)
        return self._state

    def _save(self, state: State) -> None:
        """Replace the state file atomically. Raises ``NoRight``."""
        if self._file is None or state == self._load():
            return
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(orjson.dumps(_state_document(state)))
            new.replace(self._file)
        except OSError as error:
            raise NoRight(f"state file {self._file}: {error.strerror}") from None
        self._state = state


def _state_document(state: State) -> dict[str, Any]:
    settings = {
        key: {"original": str(one.original), "written": [*map(str, one.written)]} for key, one in state.settings.items()
    }
    one = state.balancer
    told = None if one is None or one.banned is None else str(one.banned)
    balancer = None if one is None else {"socket": one.socket, "configured": str(one.configured), "banned": told}
    return {"settings": settings, BALANCER: balancer}


def _parse_state(found: Any) -> State:
    settings = {
        key: Saved(CpuSet.parse(value["original"]), tuple(CpuSet.parse(text) for text in value["written"]))
        for key, value in found["settings"].items()
    }
    one = found[BALANCER]
    if one is None:
        return State(settings)
    banned = None if one["banned"] is None else CpuSet.parse(one["banned"])
    return State(settings, Balancer(str(one["socket"]), CpuSet.parse(one["configured"]), banned))


def _change(known: Saved | None, current: CpuSet, wanted_of: Callable[[CpuSet], CpuSet]) -> _Change:
    """
    Return the change of a setting. A current value that was not written here is the original.

    Until the next read, the setting has the current or the wanted value, unless another program writes it.
    """
    ours = known is not None and current in known.written
    base = known.original if known is not None and ours else current
    wanted = wanted_of(base)
    return _Change(current, wanted, Saved(base, (current, wanted) if ours else (wanted,)))


def _without(base: CpuSet, quiet: CpuSet, online: CpuSet) -> CpuSet:
    """Return an affinity without the quiet CPUs. If no online CPU is left, all others serve, or the affinity stays."""
    rest = base - quiet
    return rest if rest & online else (online - quiet) or base


def _read(path: str) -> CpuSet | None:
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123  (see _paths)
            text = file.read().strip()
        return _parse_mask(text) if path.endswith(DEFAULT_FILE) else CpuSet.parse(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_RIGHT:
            raise NoRight(f"{path}: {error.strerror}") from None
        return None
    except ValueError:
        return None


def _write(path: str, cpus: CpuSet) -> bool:
    """Write an affinity. Return false if the kernel permits no change of this interrupt. Raises ``NoRight``."""
    try:
        file = open(path, "w", encoding="ascii")  # noqa: PTH123, SIM115  (closed below; see _paths)
    except OSError as error:
        if error.errno in _NO_RIGHT:
            raise NoRight(f"{path}: {error.strerror}") from None
        return False  # freed
    try:
        with file:
            file.write(_mask(cpus) if path.endswith(DEFAULT_FILE) else str(cpus))
    # EPERM or EIO, depending on the kernel's version: the interrupt is bound to a CPU.
    except OSError:
        return False
    return True


def _parse_mask(text: str) -> CpuSet:
    return CpuSet(int(text.strip().replace(",", ""), 16) & _KNOWN_CPUS)


def _mask(cpus: CpuSet) -> str:
    """Return the kernel's hexadecimal mask, in groups of 32 bits."""
    digits = f"{cpus.bits:x}"
    first = len(digits) % _MASK_DIGITS
    groups = [digits[:first]] if first else []
    return ",".join(groups + [digits[at : at + _MASK_DIGITS] for at in range(first, len(digits), _MASK_DIGITS)])


async def _ask(socket: Path, command: str) -> str:
    """Return irqbalance's answer to a command. irqbalance closes the connection after each command."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(command.encode())
        await writer.drain()
        return (await reader.read(1 << 16)).decode(errors="replace")
    finally:
        writer.close()


def _tell(path: Path, command: str) -> None:
    """Send a command to irqbalance, which reads it when it is awake. Raises ``OSError`` and ``ValueError``."""
    if len(command) > LONGEST_COMMAND:
        raise ValueError(f"a command of {len(command)} characters is too long")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        connection.connect(str(path))
        connection.sendall(command.encode())
