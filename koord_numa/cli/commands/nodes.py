"""``koord-numa nodes``: free amounts of all nodes, per NUMA node, in the accounting of the scheduler."""

import time

import click

from koord_numa.cli.cluster.access import Access, Selects, with_access, with_selector, with_watch
from koord_numa.cli.cluster.snapshot import Snapshot
from koord_numa.cli.cluster.views import node_entries, now
from koord_numa.cli.render.nodes import HEADINGS, WIDE, node_row
from koord_numa.cli.render.output import SECONDS, Output, check_watch, open_console, with_output
from koord_numa.view.documents import document


@click.command(short_help="List what every node has left.")
@with_selector
@with_watch
@with_output
@with_access
def command(access: Access, output: Output, selects: Selects, watch: bool) -> None:
    """List nodes: the owner of their CPUs, free CPUs per NUMA node, and the largest request that one NUMA node could serve."""
    check_watch(watch, access, output)
    snapshot = access.snapshot()
    if not snapshot.candidates():
        raise click.ClickException("there are no nodes")
    if not output.is_table:
        entries = node_entries(snapshot, selects)
        listed = document("NodeEntryList", generatedAt=now(), items=entries)
        output.print_document(listed, (f"node/{entry['name']}" for entry in entries))
        return
    console = open_console()
    if not watch and not any(selects(one.node.labels) for one in snapshot.candidates()):
        click.echo("No nodes are selected.", err=True)
        return
    shown = _rows(snapshot, selects, output)
    headings = (*HEADINGS, *WIDE) if output.form == "wide" else HEADINGS
    output.print_table(console, headings, list(shown.values()))
    while watch:
        time.sleep(SECONDS)
        rows = _rows(access.snapshot(), selects, output)
        # Whole rows are compared, so that a change in a hidden column prints nothing.
        changed = [row for name, row in rows.items() if shown.get(name) != row]
        if changed:
            Output(output.form, headers=False).print_table(console, headings, changed)
        shown = rows


def _rows(snapshot: Snapshot, selects: Selects, output: Output) -> dict[str, list[str]]:
    found = [seen for seen in snapshot.candidates() if selects(dict(seen.node.labels))]
    return {seen.node.name: node_row(seen, snapshot, wide=output.form == "wide") for seen in found}
