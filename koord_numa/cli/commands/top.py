"""``koord-numa top``: nodes by free amounts, refreshed every few seconds until Ctrl-C."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from koord_numa.cli.cluster.access import Access, Selects, with_access, with_selector
from koord_numa.cli.parameters import Documented, FiniteRange
from koord_numa.cli.render.output import Output, headings_of, node_row, with_output
from koord_numa.view.printable import printable

if TYPE_CHECKING:
    from koord_numa.cli.cluster.snapshot import Snapshot

_BAR = 24
_MOVES = 3  # displayed moves that gather free devices; -o json has all


@click.command(
    cls=Documented,
    short_help="Watch free CPUs of nodes.",
    examples=(("Refresh until Ctrl-C", "top"), ("For scripts", "top --once")),
)
@click.option("--interval", type=FiniteRange(min=0.5), default=2.0, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print one screen and exit.")
@with_selector
@with_output
@with_access
def command(interval: float, once: bool, selects: Selects, output: Output, access: Access) -> None:
    """Show free CPUs, largest aligned requests, waiting pods, and moves that free devices, emptiest nodes first."""
    if not output.is_table:
        from koord_numa.cli.cluster.views import cluster_view

        view = cluster_view(access.snapshot(), selects)
        output.print_document(view, (f"node/{node['name']}" for node in view["nodes"]))
        return
    from rich.live import Live
    from rich.text import Text

    from koord_numa.cli.render.tables import open_console

    console = open_console()
    if once or not console.is_terminal or access.files:
        for line in _screen(access.snapshot(), selects, output, 1 << 20):
            click.echo(printable(line, one_line=True))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            lines = _screen(access.snapshot(), selects, output, console.height)
            live.update(Text("\n".join(lines)), refresh=True)
            time.sleep(interval)


def _screen(snapshot: "Snapshot", selects: Selects, output: Output, height: int) -> Iterator[str]:
    from koord_numa.cli.cluster.views import cluster_view

    cluster = cluster_view(snapshot, selects)
    view, moves = cluster["summary"], cluster["moves"]
    used = view["cpus"] - view["freeCPUs"]
    filled = round(_BAR * used / view["cpus"]) if view["cpus"] else 0
    if output.headers:
        bar = f"[{'#' * filled}{'.' * (_BAR - filled)}]"
        yield f"{view['nodes']} nodes   CPUs {bar} {used:g} of {view['cpus']:g} held"
        yield f"largest aligned request: {view['largest'] or 'none'}   pods that wait: {view['waiting']}"
        for move in moves[:_MOVES]:
            yield str(move["text"])
        yield ""
    rooms = {one.node.name: one.room for one in snapshot.candidates()}
    ranked = sorted(cluster["nodes"], key=lambda entry: (-rooms[entry["name"]], entry["name"]))
    shown = ranked[: max(5, height - 6 - len(moves[:_MOVES]))]
    yield from output.table_lines(headings_of(output), [node_row(entry, output) for entry in shown])
