"""``koord-numa nodes``: free amounts of all nodes, per NUMA node, in the accounting of the scheduler."""

import time

import click

from koord_numa.cli.cluster.access import (
    Access,
    Selects,
    complete_names,
    with_access,
    with_scheduler,
    with_selector,
    with_watch,
)
from koord_numa.cli.parameters import Documented
from koord_numa.cli.render.output import (
    NODE_FIELDS,
    SECONDS,
    Output,
    check_watch,
    headings_of,
    no_resources,
    node_row,
    now,
    with_output,
    with_sorting,
)
from koord_numa.view import Document, document


@click.command(
    cls=Documented,
    short_help="List free CPUs and amounts of nodes.",
    examples=(
        ("All nodes", "nodes"),
        ("Two nodes, with pods and held amounts", "nodes worker-1 worker-2 -o wide"),
        ("Nodes of a pool, by number of pods", "nodes -l pool=gpu --sort-by .pods"),
        ("Chosen fields", "nodes -o custom-columns=NAME:.name,POLICY:.policy,LARGEST:.largest"),
    ),
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_names("nodes"))
@with_selector
@with_watch
@with_sorting
@with_output
@with_scheduler
@with_access
def command(
    names: tuple[str, ...], access: Access, output: Output, selects: Selects, watch: bool, scheduler: str
) -> None:
    """List the owner of the CPUs, free CPUs per NUMA node, and the largest request that one NUMA node can serve."""
    check_watch(watch, access, output)
    names = tuple(name.removeprefix("nodes/").removeprefix("node/") for name in names)

    def read() -> list[Document]:
        found = _all_entries(access, scheduler)
        if missing := [name for name in names if name not in {entry["name"] for entry in found}]:
            raise click.ClickException(f"there is no node {', '.join(missing)}")
        return output.ordered(
            entry for entry in found if selects(entry["labels"]) and (not names or entry["name"] in names)
        )

    entries = read()
    if not output.is_table:
        listed = document("NodeEntryList", generatedAt=now(), items=entries)
        output.print_document(listed, (f"node/{entry['name']}" for entry in entries))
        return
    if not entries and not watch:
        no_resources()
        return
    headings = headings_of(output)
    output.print_table(headings, [node_row(entry, output) for entry in entries])
    shown = {entry["name"]: entry for entry in entries}
    while watch:
        time.sleep(SECONDS)
        entries = read()
        # Whole entries are compared by their rows, so that a change in a hidden column prints nothing.
        rows = [node_row(it, output) for it in entries if _differs(shown.get(it["name"]), it, output)]
        if rows:
            Output(output.form, headers=False).print_table(headings, rows)
        shown = {entry["name"]: entry for entry in entries}


def _all_entries(access: Access, scheduler: str) -> list[Document]:
    """Return the entries of all nodes, by the running scheduler or by the objects. Raises ``click.ClickException``."""
    from koord_numa.cli.cluster.running import ask

    if (answered := ask(access, scheduler, "/api/v1/cluster")) is not None:
        found = list(answered.document.get("nodes") or ())
        # A scheduler of an earlier version may lack fields. The objects are used then.
        if all(entry.keys() >= NODE_FIELDS for entry in found):
            return found
    from koord_numa.cli.cluster.accounts import account_entries

    entries = account_entries(access)
    if access.files and not entries:
        raise click.ClickException("there are no nodes")
    return entries


def _differs(former: Document | None, entry: Document, output: Output) -> bool:
    return former is None or node_row(former, output) != node_row(entry, output)
