"""``koord-numa node NAME``: NUMA nodes, CPUs and pods of one node in the accounting of the scheduler."""

import click

from koord_numa.cli.cluster.access import Access, with_access, with_watch
from koord_numa.cli.cluster.snapshot import Snapshot
from koord_numa.cli.cluster.views import node_view
from koord_numa.cli.render.nodes import node_report
from koord_numa.cli.render.output import Lines, Output, check_watch, open_console, print_changes, with_output
from koord_numa.core.state.node_snapshot import NodeSnapshot
from koord_numa.view.documents.claims import node_claims
from koord_numa.view.documents.node import drawing_of, unused_cpus, with_claimed_cpus
from koord_numa.view.svg import svg


@click.command(short_help="Show the CPUs of one node and the pods that hold them.")
@click.argument("name")
@with_watch
@with_output
@with_access
def command(name: str, access: Access, output: Output, watch: bool) -> None:
    """Show one node: amounts per NUMA node, a map of its CPUs, and the pods that hold them. -o svg draws it as lstopo does."""
    name = name.removeprefix("node/").removeprefix("nodes/")
    check_watch(watch, access, output)
    if output.is_table:
        console = open_console()

        def read() -> Lines:
            snapshot = access.snapshot()
            return [*node_report(_seen(snapshot, name), snapshot, min(console.width, 160))]

        print_changes(console, read, watch=watch)
        return
    snapshot = access.snapshot()
    seen, document = _seen(snapshot, name), node_view(snapshot, name)
    if document is None:
        raise click.ClickException(f"there is no node {name}")
    if output.form != "svg":
        output.print_document(document, (f"node/{name}",))
        return
    info = snapshot.scheduler.cache.nodes[name]
    claims = node_claims(snapshot.scheduler.claims, info)
    drawing = drawing_of(seen, info, with_claimed_cpus(seen, claims), unused_cpus(claims))
    if drawing is None:
        raise click.ClickException(f"the CPUs of node {name} are not known by id, so they cannot be drawn")
    click.echo(svg(drawing, name), nl=False)


def _seen(snapshot: Snapshot, name: str) -> NodeSnapshot:
    """Return the snapshot of a node. Raises ``click.ClickException`` for an unknown node."""
    info = snapshot.scheduler.cache.nodes.get(name)
    seen = None if info is None else info.candidate()
    if seen is None:
        raise click.ClickException(f"there is no node {name}")
    return seen
