"""``koord-numa top``: nodes by what they have left, again every few seconds, until Ctrl-C."""

import time
from collections.abc import Iterator

import click
from rich.live import Live
from rich.text import Text

from koord_numa.cli.cluster.access import Access, with_access
from koord_numa.cli.cluster.snapshot import Snapshot
from koord_numa.cli.cluster.views import cluster_view
from koord_numa.cli.render.columns import Columns
from koord_numa.cli.render.console import open_console
from koord_numa.cli.render.nodes import HEADINGS, node_row

_BAR = 24


@click.command(short_help="Watch what nodes have left.")
@click.option("--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print one screen and end.")
@with_access
def command(interval: float, once: bool, access: Access) -> None:
    """Show free CPUs, the largest aligned request and pods that wait, the emptiest nodes first."""
    console = open_console()
    if once or not console.is_terminal or access.files:
        for line in _screen(access.snapshot(), console.height):
            console.print(line)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Text("\n").join(_screen(access.snapshot(), console.height)), refresh=True)
            time.sleep(interval)


def _screen(snapshot: Snapshot, height: int) -> Iterator[Text]:
    view = cluster_view(snapshot)["summary"]
    used = view["cpus"] - view["freeCPUs"]
    filled = round(_BAR * used / view["cpus"]) if view["cpus"] else 0
    yield Text(
        f"{view['nodes']} nodes   CPUs [{'#' * filled}{'.' * (_BAR - filled)}] {used:g} of {view['cpus']:g} held"
    )
    yield Text(f"largest aligned request: {view['largest'] or 'none'}   pods that wait: {view['waiting']}")
    yield Text()
    ranked = sorted(snapshot.candidates(), key=lambda seen: (-seen.room, seen.node.name))
    yield from Columns(HEADINGS, [node_row(seen, snapshot) for seen in ranked[: max(5, height - 6)]]).lines()
