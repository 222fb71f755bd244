"""``koord-numa rebind`` and the example, as people run them."""

import asyncio
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from koord_numa.cli import main
from koord_numa.cli.commands import rebind
from koord_numa.sandbox.apiserver import ApiServer
from tests.cluster.objects import PATIENCE
from tests.rebind.world import CRDS, FRAGMENTED, NODE, RESOURCE, ROOT, World, fragmented

BEFORE = [
    "NUMA 0  socket 0  3 of 8 CPUs free",
    "  cpu   0",
    "  t0    A A A ·",
    "  t1    B B · ·",
    "NUMA 1  socket 0  1 of 8 CPUs free",
    "  cpu   8",
    "  t0    A A A ·",
    "  t1    B B C C",
    "  A default/a  0,2,4,8,10,12",
    "  B default/b  1,3,9,11",
    "  C default/c  13,15",
]
AFTER = [
    "NUMA 0  socket 0  0 of 8 CPUs free",
    "  cpu   0",
    "  t0    A A A C",
    "  t1    A A A C",
    "NUMA 1  socket 0  4 of 8 CPUs free",
    "  cpu   8",
    "  t0    B B · ·",
    "  t1    B B · ·",
    "  A default/a  0-5",
    "  B default/b  8-11",
    "  C default/c  6-7",
]


async def run(world: World, *arguments: str) -> Result:
    """The command beside the server, which runs in this thread."""
    options = ["rebind", *arguments, "--kubeconfig", str(world.folder / "kubeconfig")]
    return await asyncio.to_thread(CliRunner().invoke, main, options)


LEGEND = "  · free   t0, t1: threads of a core"


def part(output: str, begin: str, end: str) -> list[str]:
    """The picture between two titles, without its key."""
    lines = output.splitlines()
    starts = [index for index, line in enumerate(lines) if begin in line]
    rest = lines[starts[0] + 1 :]
    return rest[: rest.index(end)]


async def test_waiting_shows_the_node_before_and_after(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler():
        result = await run(world, NODE, "--wait")
    assert result.exit_code == 0, result.output
    assert part(result.output, "─ before ─", LEGEND) == BEFORE
    assert part(result.output, "─ after ─", LEGEND) == AFTER
    assert "  default/a: 0,2,4,8,10,12 → 0-5" in result.output.splitlines()
    assert "Succeed: 3 pods moved in 6 steps: NUMA-crossing pods 2 → 0" in result.output


async def test_a_dry_run_shows_what_would_be(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler():
        result = await run(world, NODE, "--dry-run")
        assert world.assigned() == FRAGMENTED
    assert result.exit_code == 0, result.output
    assert part(result.output, "if it were done", LEGEND) == AFTER


async def test_without_waiting_it_says_how_to_follow(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:
        result = await run(world, NODE, "--deadline", "60")
        (asked,) = world.server.store.list(RESOURCE)
    assert result.exit_code == 0, result.output
    name = asked["metadata"]["name"]
    assert f"kubectl get rebindresource {name} --watch" in result.output
    assert asked["spec"] == {
        "nodeName": NODE,
        "rebindAction": "RebindCPU",
        "dryRun": False,
        "moveMemory": False,
        "deadlineInSeconds": 60,
    }


async def test_a_rebind_that_fails_is_a_failure_of_the_command(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world, world.scheduler():
        result = await run(world, "nowhere", "--wait")
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "Error: there is no node nowhere"


async def test_a_dry_run_leaves_nothing_behind(tmp_path: Path) -> None:
    async with fragmented(tmp_path) as world:
        result = await run(world, NODE, "--dry-run")
        left = world.server.store.list(RESOURCE)
    assert result.exit_code == 0, result.output
    assert "after, if it were done" in result.output
    assert "would move in" in result.output
    assert left == []


async def test_no_scheduler_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebind, "PATIENCE", 0.1)
    async with fragmented(tmp_path) as world:
        result = await run(world, NODE, "--wait")
    assert result.exit_code == 1
    assert "does koord-numa run?" in result.output


def test_the_manifest_of_the_example_is_accepted() -> None:
    server = ApiServer(crds=CRDS)
    (made,) = server.apply_file(ROOT / "examples" / "rebind" / "rebind.yaml")
    assert made["spec"]["nodeName"] == "worn"


@pytest.mark.e2e
async def test_the_example_makes_the_node_visibly_better() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "examples" / "rebind"), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    text = output.decode()
    assert process.returncode == 0, text
    assert "NUMA-crossing pods 4 → 0, NUMA crossings 4 → 0, split cores 18 → 0, largest free block 2 → 10" in text
