"""``koord-numa top``: nodes by free amounts, refreshed every few seconds until Ctrl-C."""

import time
from collections.abc import Iterator

import click
from rich.live import Live
from rich.text import Text

from koord_numa.cli.cluster.access import Access, Selects, with_access, with_selector
from koord_numa.cli.cluster.snapshot import Snapshot
from koord_numa.cli.cluster.views import cluster_view
from koord_numa.cli.finite_range import FiniteRange
from koord_numa.cli.render.nodes import HEADINGS, WIDE, node_row
from koord_numa.cli.render.output import Output, open_console, with_output
from koord_numa.view.printable import printable

_BAR = 24
_MOVES = 3  # displayed moves that gather free devices; -o json has all


@click.command(short_help="Watch what nodes have left.")
@click.option("--interval", type=FiniteRange(min=0.5), default=2.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print one screen and end.")
@with_selector
@with_output
@with_access
def command(interval: float, once: bool, selects: Selects, output: Output, access: Access) -> None:
    """Show free CPUs, the largest aligned request and pods that wait and moves that gather free devices, the emptiest nodes first."""
    console = open_console()
    if not output.is_table:
        view = cluster_view(access.snapshot(), selects)
        output.print_document(view, (f"node/{node['name']}" for node in view["nodes"]))
        return
    if once or not console.is_terminal or access.files:
        for line in _screen(access.snapshot(), selects, output, 1 << 20):
            console.print(line)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            lines = _screen(access.snapshot(), selects, output, console.height)
            live.update(Text("\n").join(lines), refresh=True)
            time.sleep(interval)


def _screen(snapshot: Snapshot, selects: Selects, output: Output, height: int) -> Iterator[Text]:
    cluster = cluster_view(snapshot, selects)
    view, moves = cluster["summary"], cluster["moves"]
    used = view["cpus"] - view["freeCPUs"]
    filled = round(_BAR * used / view["cpus"]) if view["cpus"] else 0
    if output.headers:
        bar = f"[{'#' * filled}{'.' * (_BAR - filled)}]"
        yield Text(f"{view['nodes']} nodes   CPUs {bar} {used:g} of {view['cpus']:g} held")
        yield Text(f"largest aligned request: {view['largest'] or 'none'}   pods that wait: {view['waiting']}")
        for move in moves[:_MOVES]:
            yield Text(printable(move["text"], one_line=True))
        yield Text()
    wide = output.form == "wide"
    seen = [one for one in snapshot.candidates() if selects(one.node.labels)]
    ranked = sorted(seen, key=lambda one: (-one.room, one.node.name))[: max(5, height - 6 - len(moves[:_MOVES]))]
    headings = (*HEADINGS, *WIDE) if wide else HEADINGS
    yield from output.table_lines(headings, [node_row(one, snapshot, wide=wide) for one in ranked])
