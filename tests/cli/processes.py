"""Commands as processes, watched by what they print."""

import asyncio
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.cluster.objects import PATIENCE


@asynccontextmanager
async def started(
    *arguments: str, program: Sequence[str] = ("-m", "koord_numa"), **environment: str
) -> AsyncIterator[Process]:
    """``koord-numa`` with these arguments; asked to end at the end if it still runs, so that no child of its own is left."""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1", "TMPDIR": tempfile.gettempdir(), **environment}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, *arguments, stdout=PIPE, stderr=STDOUT, env=environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.communicate(), PATIENCE)
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line_with(process: Process, text: str) -> str:
    """The next line that has this text in it."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        async for line in process.stdout:
            if text in line.decode():
                return line.decode().strip()
    raise AssertionError(f"ended without saying {text!r}")


async def is_open(url: str) -> bool:
    """Return true if a server answers at the address."""
    address = urlsplit(url)
    try:
        _, writer = await asyncio.open_connection(address.hostname, address.port)
    except OSError:
        return False
    writer.close()
    return True


def left_in(folder: Path) -> list[Path]:
    """Return the names of all files in the folder."""
    return list(folder.iterdir())


def processes_about(text: str) -> list[str]:
    """Command lines of running processes with this text in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if text in line:
            found.append(line)
    return found
