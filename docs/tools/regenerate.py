# noqa: INP001  (a script, which the one beside it imports by its name)
"""
Record the output of the demo and of commands on its cluster in ``tests/docs/demo.txt``: ``make docs-output``.

Runs each command of the file. README.md and docs/demo.md show lines of the output; a test names lines that are no longer printed.
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
RECORD: Final = ROOT / "tests" / "docs" / "demo.txt"
COMMAND: Final = re.compile(r"^\$ koord-numa (.*)$", re.MULTILINE)
LAST: Final = "  koord-numa explain too-wide"


async def main() -> None:
    """Run the demo, then each command on its cluster, and write their output."""
    commands = COMMAND.findall(RECORD.read_text(encoding="utf-8"))[1:]
    async with kept_demo() as (report, kubeconfig):
        outputs = {"demo": report}
        for command in commands:
            process = await start(*command.split(), kubeconfig=kubeconfig)
            outputs[command] = (await process.communicate())[0].decode()
    text = "".join(f"$ koord-numa {command}\n{output}" for command, output in outputs.items())
    RECORD.write_text(text, encoding="utf-8")


@asynccontextmanager
async def kept_demo() -> AsyncIterator[tuple[str, str]]:
    """Run a demo, and keep its cluster while the block runs. Yields the report and the kubeconfig."""
    process = await start("demo", "--keep")
    assert process.stdout is not None  # noqa: S101  (a pipe was requested)
    lines: list[str] = []
    while not lines or lines[-1] != LAST:
        if process.stdout.at_eof():
            raise SystemExit("\n".join(lines))
        lines.append((await process.stdout.readline()).decode().rstrip("\n"))
    [kubeconfig] = [line.partition("=")[2] for line in lines if "export KUBECONFIG" in line]
    end = next(index for index, line in enumerate(lines) if line.endswith("CPUs held twice."))
    try:
        yield "".join(f"{line}\n" for line in lines[: end + 1] if " submitted " not in line), kubeconfig
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
