"""``koord-numa nodes``: what every node has left, per NUMA node, as the scheduler sees it."""

from pathlib import Path

import click

from koord_numa.cli.cluster.snapshot import CONFIG, FILES, KUBECONFIG, Access
from koord_numa.cli.render.console import open_console
from koord_numa.cli.render.nodes import nodes_table


@click.command(short_help="List what every node has left.")
@FILES
@KUBECONFIG
@CONFIG
def command(files: tuple[Path, ...], kubeconfig: Path | None, config: Path | None) -> None:
    """List nodes: the owner of their CPUs, free CPUs per NUMA node, and the largest request that one NUMA node could serve."""
    console = open_console()
    snapshot = Access(kubeconfig, config, files).snapshot()
    if not snapshot.candidates():
        raise click.ClickException("there are no nodes")
    for line in nodes_table(snapshot):
        console.print(line)
