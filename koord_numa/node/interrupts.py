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
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from koord_numa.core.cpuset import MAX_CPU, CpuSet

logger = logging.getLogger(__name__)

STATE_FILE: Final = "interrupts.json"
DEFAULT: Final = "default"
BALANCER: Final = "irqbalance"
TIMEOUT: Final = 2.0
"""Seconds for a command to irqbalance, which answers between two scans of a few milliseconds."""
MAX_WRITTEN: Final = 8
"""Remembered values per interrupt. irqbalance reports a new ban after its next scan, up to 10 seconds later."""
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
    ``returned`` counts those that another program has moved back. ``problem`` is the reason why nothing was changed.
    """

    kept_off: int = 0
    unmovable: int = 0
    returned: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Saved:
    """The original value of a setting, and the values that this module has written or was about to write."""

    original: CpuSet
    written: tuple[CpuSet, ...] = ()


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
        self._saved: dict[str, Saved] | None = None

    @property
    def changed(self) -> bool:
        """Return whether any setting is, or may be, changed by this module."""
        return bool(self._load())

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
            problem = await self._ban(quiet)
            return replace(self._steer(quiet, online), problem=problem)
        except NoRight as error:
            return Steering(problem=f"interrupts are not moved: {error}")

    def _steer(self, quiet: CpuSet, online: CpuSet) -> Steering:
        saved = self._load()
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
        others = {BALANCER: saved[BALANCER]} if BALANCER in saved else {}
        # The file has the new values before the kernel has: a crash at any point leaves a state that is known.
        pending = {key: one for key, one in changes.items() if one.current != one.wanted}
        kept = {key: one for key, one in changes.items() if not one.restored or key in pending}
        self._save(others | {key: one.saved for key, one in kept.items()})
        failed = {key for key, one in pending.items() if not _write(paths[key], one.wanted)}
        # A setting that cannot be changed has its original value.
        self._save(others | {key: one.saved for key, one in kept.items() if not one.restored and key not in failed})
        now = {key: one.current if key in failed else one.wanted for key, one in changes.items() if key != DEFAULT}
        return Steering(
            kept_off=sum(not changes[key].restored and key not in failed for key in now),
            unmovable=sum(bool(cpus & quiet) for cpus in now.values()),
            returned=returned,
        )

    def _paths(self) -> dict[str, Path]:
        try:
            numbers = sorted((entry.name for entry in os.scandir(self._irq) if entry.name.isdigit()), key=int)
        except OSError as error:
            raise NoRight(f"{self._irq}: {error.strerror}") from None
        paths = {number: self._irq / number / "smp_affinity_list" for number in numbers}
        return {DEFAULT: self._irq / "default_smp_affinity"} | paths

    async def _ban(self, quiet: CpuSet) -> str:
        """Add the CPUs to irqbalance's bans, or reset the bans to its configuration. Return the reason if that fails."""
        saved = self._load()
        known = saved.get(BALANCER)
        if not quiet and known is None:
            return ""
        others = {key: one for key, one in saved.items() if key != BALANCER}
        for socket in sorted(self._sockets.glob("irqbalance*.sock")):
            try:
                _, _, mask = (await _ask(socket, "setup")).rpartition("BANNED ")
                banned = _parse_mask(mask)
                change = _change(known, banned, lambda base: base | quiet)
                if quiet:
                    self._save(others | {BALANCER: change.saved})
                    if change.wanted != banned:
                        await _ask(socket, f"settings cpus {change.wanted}")
                # Until its next scan, irqbalance reports the bans that it had before.
                elif known is not None and banned in known.written and banned != known.original:
                    await _ask(socket, "settings cpus NULL")
                else:
                    self._save(others)
            except (FileNotFoundError, ConnectionRefusedError):
                continue  # the socket of an irqbalance that has ended
            except (OSError, TimeoutError, ValueError) as error:
                return f"irqbalance moves interrupts back: {socket}: {str(error) or 'no answer'}"
            return ""
        self._save(others)  # none runs, and a new irqbalance starts with its configuration
        return ""

    def _load(self) -> dict[str, Saved]:
        if self._saved is None:
            self._saved = {}
            try:
                text = b"" if self._file is None else self._file.read_bytes()
                self._saved = {key: _saved(value) for key, value in orjson.loads(text or b"{}").items()}
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError, AttributeError, KeyError):
                logger.exception("%s is not readable: the original affinities are lost", self._file)
        return self._saved

    def _save(self, state: dict[str, Saved]) -> None:
        """Replace the state file atomically. Raises ``NoRight``."""
        if self._file is None or state == self._load():
            return
        content = {
            key: {"original": str(one.original), "written": [*map(str, one.written)]} for key, one in state.items()
        }
        new = self._file.with_suffix(".new")
        try:
            new.write_bytes(orjson.dumps(content))
            new.replace(self._file)
        except OSError as error:
            raise NoRight(f"state file {self._file}: {error.strerror}") from None
        self._saved = state


def _saved(value: Any) -> Saved:
    return Saved(CpuSet.parse(value["original"]), tuple(CpuSet.parse(text) for text in value["written"]))


def _change(known: Saved | None, current: CpuSet, wanted_of: Callable[[CpuSet], CpuSet]) -> _Change:
    """Return the change of a setting. A current value that was not written here is the original."""
    base = current
    written: tuple[CpuSet, ...] = ()
    if known is not None and current in known.written:
        base, written = known.original, known.written
    wanted = wanted_of(base)
    if wanted not in written:
        written = (*written, wanted)[-MAX_WRITTEN:]
    return _Change(current, wanted, Saved(base, written))


def _without(base: CpuSet, quiet: CpuSet, online: CpuSet) -> CpuSet:
    """Return an affinity without the quiet CPUs. If no online CPU is left, all others serve, or the affinity stays."""
    rest = base - quiet
    return rest if rest & online else (online - quiet) or base


def _read(path: Path) -> CpuSet | None:
    try:
        text = path.read_text(encoding="ascii").strip()
        return _parse_mask(text) if path.name == "default_smp_affinity" else CpuSet.parse(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _NO_RIGHT:
            raise NoRight(f"{path}: {error.strerror}") from None
        return None
    except ValueError:
        return None


def _write(path: Path, cpus: CpuSet) -> bool:
    """Write an affinity. Return false if the kernel permits no change of this interrupt. Raises ``NoRight``."""
    try:
        path.write_text(_mask(cpus) if path.name == "default_smp_affinity" else str(cpus), encoding="ascii")
    except OSError as error:
        if error.errno in _NO_RIGHT:
            raise NoRight(f"{path}: {error.strerror}") from None
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
    if len(command) > LONGEST_COMMAND:
        raise ValueError(f"a command of {len(command)} characters is too long")
    async with asyncio.timeout(TIMEOUT):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        try:
            writer.write(command.encode())
            await writer.drain()
            return (await reader.read(1 << 16)).decode(errors="replace")
        finally:
            writer.close()
