"""``demo.txt`` is the output of the demo and of commands on its cluster. README.md and ``docs/demo.md`` show lines of it."""

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

ROOT: Final = Path(__file__).parents[2]
RECORDED: Final = dict(
    block.split("\n", 1) for block in Path(__file__).with_name("demo.txt").read_text().split("$ koord-numa ")[1:]
)
"""Commands and their output. ``make docs-output`` writes the file."""

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
    return without_durations("\n".join(lines[begin : end + 1]))


def without_durations(text: str) -> list[str]:
    return re.sub(r"in \d+\.\d s", "in ... s", text).splitlines()


@pytest.mark.parametrize("document", ["README.md", "docs/demo.md"])
def test_documents_show_lines_of_it_in_order(document: str) -> None:
    shown = re.findall(r"```\n\$ (?:make|koord-numa) (.*?)\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    assert shown
    for command, text in shown:
        recorded = iter(without_durations(RECORDED[command]))
        assert [
            line for line in without_durations(text) if line.strip() not in ("…", "") and line not in recorded
        ] == []


@pytest.mark.e2e
async def test_the_recorded_output_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (demo, shown), *around = RECORDED.items()
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
