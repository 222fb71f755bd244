"""``koord-numa nodes``: what every node has left, per NUMA node, as the scheduler counts it."""

import time
from collections.abc import Callable
from typing import Final

import click

from koord_numa.cli.cluster.access import Access, with_access
from koord_numa.cli.cluster.snapshot import Snapshot
from koord_numa.cli.cluster.views import node_entries, now
from koord_numa.cli.render.console import open_console
from koord_numa.cli.render.nodes import HEADINGS, WIDE, node_row
from koord_numa.cli.render.output import Output, with_output
from koord_numa.sandbox.apiserver.errors import ApiError
from koord_numa.sandbox.apiserver.rules.selectors import parse_labels
from koord_numa.view.documents import document

WATCH_SECONDS: Final = 2.0

Selects = Callable[[dict[str, str]], bool]


@click.command(short_help="List what every node has left.")
@click.option("-l", "--selector", default="", help="Labels of nodes, as kubectl has them.")
@click.option("-w", "--watch", is_flag=True, help="Go on, and print nodes that change.")
@with_output
@with_access
def command(access: Access, output: Output, selector: str, watch: bool) -> None:
    """List nodes: the owner of their CPUs, free CPUs per NUMA node, and the largest request that one NUMA node could serve."""
    selects = label_filter(selector)
    if watch and (access.files or not output.is_table):
        raise click.UsageError("--watch needs a cluster, and a table as its output")
    snapshot = access.snapshot()
    if not snapshot.candidates():
        raise click.ClickException("there are no nodes")
    if not output.is_table:
        entries = node_entries(snapshot, selects)
        listed = document("NodeEntryList", generatedAt=now(), items=entries)
        output.print_document(listed, (f"node/{entry['name']}" for entry in entries))
        return
    console = open_console()
    shown = _rows(snapshot, selects, output)
    headings = (*HEADINGS, *WIDE) if output.form == "wide" else HEADINGS
    output.print_table(console, headings, list(shown.values()))
    while watch:
        time.sleep(WATCH_SECONDS)
        rows = _rows(access.snapshot(), selects, output)
        changed = [row for name, row in rows.items() if shown.get(name) != row]
        if changed:
            Output(output.form, headers=False).print_table(console, headings, changed)
        shown = rows


def label_filter(selector: str) -> Selects:
    """Do labels meet a selector? Raises ``click.BadParameter`` for one that cannot be parsed."""
    try:
        requirements = parse_labels(selector) if selector else ()
    except ApiError as error:
        raise click.BadParameter(str(error)) from None
    return lambda labels: all(requirement.holds(labels) for requirement in requirements)


def _rows(snapshot: Snapshot, selects: Selects, output: Output) -> dict[str, list[str]]:
    found = [seen for seen in snapshot.candidates() if selects(dict(seen.node.labels))]
    return {seen.node.name: node_row(seen, snapshot, wide=output.form == "wide") for seen in found}
