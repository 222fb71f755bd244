"""What ``docs/demo.md`` shows is what the demo, and the commands that look around in it, really print."""

import asyncio
import re
from asyncio.subprocess import Process
from pathlib import Path
from typing import Final

import pytest
from aiohttp import ClientSession
from click.testing import CliRunner

from koord_numa.cli import main
from tests.cli.processes import left_in, started
from tests.cluster.objects import PATIENCE

pytestmark = pytest.mark.e2e

ROOT: Final = Path(__file__).parents[2]
BLOCKS: Final = re.findall(r"```\n\$ koord-numa (.*?)\n(.*?)```", (ROOT / "docs" / "demo.md").read_text(), re.DOTALL)
"""Commands and what they print, in the order of the document."""

LAST: Final = "  koord-numa explain too-wide"


async def printed(process: Process) -> list[str]:
    """Everything up to the hints at the end."""
    lines: list[str] = []
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while not lines or lines[-1] != LAST:
            line = await process.stdout.readline()
            assert line, "ended early:\n" + "\n".join(lines)
            lines.append(line.decode().rstrip("\n"))
    return lines


def report(lines: list[str]) -> list[str]:
    """Without progress and durations."""
    begin = next(index for index, line in enumerate(lines) if line.startswith("  POD "))
    end = next(index for index, line in enumerate(lines) if line.endswith("CPUs held twice."))
    return [re.sub(r"in \d+\.\d s", "in ... s", line) for line in lines[begin : end + 1]]


def test_the_readme_shows_parts_of_it() -> None:
    [shown] = re.findall(r"```\n\$ make demo\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    whole = iter(report(BLOCKS[0][1].splitlines()))
    missing = [line for line in report(shown.splitlines()) if line.strip() != "…" and line not in whole]
    assert missing == []


async def test_the_document_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (demo, shown), *around = BLOCKS
    assert demo == "demo"
    monkeypatch.chdir(ROOT)
    async with started("demo", "--keep", "--speed", "0.4", TMPDIR=str(tmp_path)) as process:
        lines = await printed(process)
        assert report(lines) == report(shown.splitlines())
        [page] = re.findall(r"Its page: (http://\S+)", "\n".join(lines))
        async with ClientSession() as session, session.get(page) as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
        [kubeconfig] = [line.partition("=")[2] for line in lines if "export KUBECONFIG" in line]
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
        for command, text in around:
            result = await asyncio.to_thread(CliRunner().invoke, main, command.split())
            assert result.output == text, command
        process.terminate()
        await process.wait()
    assert left_in(tmp_path) == []
