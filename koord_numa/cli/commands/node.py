"""``koord-numa node NAME``: one node's NUMA nodes, CPUs and pods, as the scheduler counts them."""

from pathlib import Path

import click

from koord_numa.cli.cluster.snapshot import CONFIG, FILES, KUBECONFIG, Access
from koord_numa.cli.render.console import open_console
from koord_numa.cli.render.nodes import node_report


@click.command(short_help="Show the CPUs of one node and the pods that hold them.")
@click.argument("name")
@FILES
@KUBECONFIG
@CONFIG
def command(name: str, files: tuple[Path, ...], kubeconfig: Path | None, config: Path | None) -> None:
    """Show one node: amounts per NUMA node, a map of its CPUs, and the pods that hold them."""
    console = open_console()
    snapshot = Access(kubeconfig, config, files).snapshot()
    seen = next((seen for seen in snapshot.candidates() if seen.node.name == name), None)
    if seen is None:
        raise click.ClickException(f"there is no node {name}")
    for line in node_report(seen, snapshot, min(console.width, 160)):
        console.print(line)
