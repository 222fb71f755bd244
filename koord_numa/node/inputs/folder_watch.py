"""
Notice that files in a directory were replaced: Linux' inotify, called through the C library.

A directory is watched and not a file, because the kubelet replaces its files. Where inotify is not available nothing is reported, and the
caller's polling finds the change.
"""

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Self

logger = logging.getLogger(__name__)

_CLOSE_WRITE: Final = 0x08
_MOVED_TO: Final = 0x80
_DELETE: Final = 0x200
_EVENTS: Final = _CLOSE_WRITE | _MOVED_TO | _DELETE
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC  # IN_NONBLOCK | IN_CLOEXEC


class FolderWatch:
    """Calls back after changes in these directories while the context lasts; several changes may be one call."""

    def __init__(self, folders: Iterable[Path], changed: Callable[[], None]) -> None:
        self._folders = tuple(folders)
        self._changed = changed
        self._descriptor = -1
        self.watching: tuple[Path, ...] = ()

    def __enter__(self) -> Self:
        try:
            library = ctypes.CDLL(None, use_errno=True)
            self._descriptor = library.inotify_init1(_FLAGS)
            if self._descriptor >= 0:
                self.watching = tuple(
                    folder
                    for folder in self._folders
                    if library.inotify_add_watch(self._descriptor, os.fsencode(folder), _EVENTS) >= 0
                )
        except (OSError, AttributeError) as error:  # another operating system
            logger.info("inotify is not available: %s", error)
        if self.watching:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        else:
            logger.info("changes in %s are found by polling", ", ".join(map(str, self._folders)))
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)

    def _read(self) -> None:
        try:
            while os.read(self._descriptor, 1 << 16):
                pass
        except BlockingIOError:
            pass
        self._changed()
