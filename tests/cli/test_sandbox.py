"""The sandbox as people run it: a server, a kubeconfig, simulated machines, and nothing left afterwards."""

import asyncio
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import pytest
import yaml
from click.testing import CliRunner

from koord_numa.cli import main
from koord_numa.cli.commands.sandbox import loadable
from koord_numa.cluster.client import Api
from koord_numa.cluster.lister import ListedKind, list_all
from koord_numa.cluster.resources import NODES
from koord_numa.wire.nodes import parse_node
from tests.cli.processes import is_open, left_in, line_with, started
from tests.cli.small import RACK, ask, pod, small_cluster


@pytest.mark.e2e
@pytest.mark.parametrize(("number", "has_file"), [(SIGINT, False), (SIGTERM, True)])
async def test_it_serves_until_it_is_told_to_stop(tmp_path: Path, number: Signals, has_file: bool) -> None:
    """Without a file for the kubeconfig, the server removes its own."""
    machines, kubeconfig, temporary = tmp_path / "fleet.yaml", tmp_path / "kubeconfig", tmp_path / "temporary"
    machines.write_text(yaml.safe_dump(RACK))
    temporary.mkdir()
    options = ("--kubeconfig", str(kubeconfig)) if has_file else ()
    async with started("sandbox", "--machines", str(machines), *options, TMPDIR=str(temporary)) as process:
        url = (await line_with(process, "serving")).split()[1]
        exported = Path((await line_with(process, "export KUBECONFIG=")).partition("=")[2])
        assert exported == kubeconfig if has_file else exported.is_relative_to(temporary)
        async with await Api.connect(exported) as api:
            nodes = await list_all(api, ListedKind(NODES, parse_node))
        assert [node.name for node in nodes.objects] == ["own", "theirs"]
        process.send_signal(number)
        assert await process.wait() == 0
        assert not await is_open(url)
    assert left_in(temporary) == []


def test_a_foreign_kubeconfig_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "config"
    precious.write_text("clusters: []")
    answer = CliRunner().invoke(main, ["sandbox", "--kubeconfig", str(precious)])
    assert answer.exit_code == 1
    assert precious.read_text() == "clusters: []"


def test_machines_that_cannot_be(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("machines: [{name: n, sockets: 0}]")
    answer = CliRunner().invoke(main, ["sandbox", "--machines", str(wrong)])
    assert (answer.exit_code, answer.output) == (
        1,
        f"Error: {wrong}: machines[0].sockets: 0 is below 1, the least that is allowed\n",
    )


def test_fields_that_the_server_drops_are_reported(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("machines: [{name: n, labels: {a b: c}}]")
    answer = CliRunner().invoke(main, ["sandbox", "--machines", str(wrong)])
    assert answer.exit_code == 1
    assert answer.output.startswith('Error: Node "n" is invalid: metadata.labels: Invalid value: "a b"')


def test_objects_are_ordered_by_what_refers_to_what() -> None:
    kinds = ("Pod", "Node", "NodeResourceTopology", "Namespace")
    loaded = loadable([{"kind": kind, "metadata": {"name": "x", "resourceVersion": "7"}} for kind in kinds])
    assert [it["kind"] for it in loaded] == ["Namespace", "Node", "Pod", "NodeResourceTopology"]
    assert all(it["metadata"] == {"name": "x"} for it in loaded)


@pytest.mark.e2e
async def test_files_with_objects_are_served(tmp_path: Path) -> None:
    """A snapshot of one cluster is another cluster, in which the same pod has the same answer."""
    snapshot, listed, kubeconfig = tmp_path / "cluster.yaml", tmp_path / "list.yaml", tmp_path / "other"
    async with small_cluster(tmp_path, pod("wide", 10, numa="SingleNUMANode", kind="own")) as cluster:
        assert (await ask(cluster, "snapshot", "-o", str(snapshot))).exit_code == 0
        before = [(await ask(cluster, *words)).output for words in (("nodes",), ("explain", "wide"))]
    # One half of the objects is a stream of documents, the other half a List.
    objects = list(yaml.safe_load_all(snapshot.read_text()))
    assert len(objects) > 4
    snapshot.write_text(yaml.safe_dump_all(objects[::2]))
    listed.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": objects[1::2]}))
    files = ("--load", str(snapshot), "--load", str(listed))
    async with started("sandbox", *files, "--kubeconfig", str(kubeconfig)) as process:
        await line_with(process, "export")
        options = ("--kubeconfig", str(kubeconfig))
        after = [
            (await asyncio.to_thread(CliRunner().invoke, main, [*words, *options])).output
            for words in (("nodes",), ("explain", "wide"))
        ]
        process.send_signal(SIGINT)
        assert await process.wait() == 0
    assert after == before
