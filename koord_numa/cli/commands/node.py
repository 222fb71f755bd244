"""``koord-numa node NAME``: one node's NUMA nodes, CPUs and pods, as the scheduler counts them."""

import click

from koord_numa.cli.cluster.access import Access, with_access
from koord_numa.cli.cluster.views import node_view
from koord_numa.cli.render.console import open_console
from koord_numa.cli.render.nodes import node_report
from koord_numa.cli.render.output import Output, with_output
from koord_numa.view.documents.node import drawing_of
from koord_numa.view.svg import svg


@click.command(short_help="Show the CPUs of one node and the pods that hold them.")
@click.argument("name")
@with_output
@with_access
def command(name: str, access: Access, output: Output) -> None:
    """Show one node: amounts per NUMA node, a map of its CPUs, and the pods that hold them. -o svg draws it as lstopo does."""
    name = name.removeprefix("node/").removeprefix("nodes/")
    snapshot = access.snapshot()
    info, document = snapshot.scheduler.cache.nodes.get(name), node_view(snapshot, name)
    seen = None if info is None else info.candidate()
    if seen is None or document is None:
        raise click.ClickException(f"there is no node {name}")
    if output.form == "svg":
        drawing = drawing_of(seen, info)
        if drawing is None:
            raise click.ClickException(f"the CPUs of node {name} are not known by id, so they cannot be drawn")
        click.echo(svg(drawing, name), nl=False)
    elif not output.is_table:
        output.print_document(document, (f"node/{name}",))
    else:
        console = open_console()
        for line in node_report(seen, snapshot, min(console.width, 160)):
            console.print(line)
