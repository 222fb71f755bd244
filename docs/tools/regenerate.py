# noqa: INP001  (a script, which the one beside it imports by its name)
"""
Writes what commands really print into the documents: ``make docs-output``. A test compares the documents with the same output.

Each block that begins with ``$ koord-numa COMMAND`` in docs/demo.md is run against the cluster of one ``koord-numa demo --keep``.
"""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs" / "demo.md"
BLOCK: Final = re.compile(r"(```\n\$ koord-numa (.*?)\n)(.*?)(```)", re.DOTALL)
LAST: Final = "  koord-numa explain too-wide"


async def main() -> None:
    """Run the demo, then each command, and write what it prints into the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    async with look_around() as kubeconfig:
        for block in list(BLOCK.finditer(text))[1:]:
            command = await start(*block[2].split(), kubeconfig=kubeconfig)
            output, _ = await command.communicate()
            text = text.replace(block[0], f"{block[1]}{output.decode()}{block[4]}")
    DOCUMENT.write_text(text, encoding="utf-8")


@asynccontextmanager
async def look_around() -> AsyncIterator[str]:
    """The kubeconfig of a demo that has ended and is kept while the block runs."""
    process = await start("demo", "--keep", "--speed", "10")
    assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
    lines: list[str] = []
    while not lines or lines[-1] != LAST:
        if process.stdout.at_eof():
            raise SystemExit("\n".join(lines))
        lines.append((await process.stdout.readline()).decode().rstrip("\n"))
    [kubeconfig] = [line.partition("=")[2] for line in lines if "export KUBECONFIG" in line]
    try:
        yield kubeconfig
    finally:
        process.terminate()
        await process.wait()


async def start(*arguments: str, kubeconfig: str = "") -> asyncio.subprocess.Process:
    """One command, as people run it outside of a terminal."""
    environment = {**os.environ, **({"KUBECONFIG": kubeconfig} if kubeconfig else {})}
    command: Sequence[str] = (sys.executable, "-m", "koord_numa", *arguments)
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT, env=environment, cwd=ROOT)


if __name__ == "__main__":
    asyncio.run(main())
