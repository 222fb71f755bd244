"""``koord-numa node NAME``: NUMA nodes, CPUs and pods of one node in the accounting of the scheduler."""

from typing import TYPE_CHECKING

import click

from koord_numa.cli.cluster.access import Access, complete_names, with_access, with_watch
from koord_numa.cli.parameters import Documented
from koord_numa.cli.render.output import Lines, Output, check_watch, now, print_changes, width, with_output

if TYPE_CHECKING:
    from koord_numa.cli.cluster.snapshot import Snapshot
    from koord_numa.core.state.inventory import NodeSnapshot

WIDEST = 160
"""Maximum columns of a map of CPUs."""


@click.command(
    cls=Documented,
    short_help="Show the CPUs of one node and the pods that hold them.",
    examples=(
        ("One node", "node worker-1"),
        ("Two nodes", "node worker-1 worker-2"),
        ("A drawing", "node worker-1 -o svg"),
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_names("nodes"))
@with_watch
@with_output
@with_access
def command(names: tuple[str, ...], access: Access, output: Output, watch: bool) -> None:
    """Show nodes: amounts per NUMA node, a map of their CPUs, and the pods that hold them. -o svg draws one like lstopo."""
    names = tuple(name.removeprefix("nodes/").removeprefix("node/") for name in names)
    check_watch(watch, access, output)
    if output.is_table:
        print_changes(lambda: _report(access, names), watch=watch)
        return
    from koord_numa.cli.cluster.views import node_view
    from koord_numa.view import document

    snapshot = access.snapshot()
    if output.form == "svg":
        if len(names) > 1:
            raise click.UsageError("-o svg accepts one node")
        _draw(snapshot, names[0])
        return
    views = [node_view(snapshot, _seen(snapshot, name).node.name) for name in names]
    found = [view for view in views if view is not None]
    whole = found[0] if len(names) == 1 else document("NodeViewList", generatedAt=now(), items=found)
    output.print_document(whole, (f"node/{name}" for name in names))


def _report(access: Access, names: tuple[str, ...]) -> Lines:
    from koord_numa.cli.render.nodes import node_report

    snapshot = access.snapshot()
    lines: list[Lines] = []
    for name in names:
        lines.append([*([""] if lines else []), *node_report(_seen(snapshot, name), snapshot, min(width(), WIDEST))])
    return [line for part in lines for line in part]


def _draw(snapshot: "Snapshot", name: str) -> None:
    from koord_numa.view.documents import drawing_of, node_claims, unused_cpus, with_claimed_cpus
    from koord_numa.view.drawing import svg

    seen, info = _seen(snapshot, name), snapshot.scheduler.cache.nodes[name]
    claims = node_claims(snapshot.scheduler.claims, info)
    drawing = drawing_of(seen, info, with_claimed_cpus(seen, claims), unused_cpus(claims))
    if drawing is None:
        raise click.ClickException(f"the CPUs of node {name} are not known by id, so they cannot be drawn")
    click.echo(svg(drawing, name), nl=False)


def _seen(snapshot: "Snapshot", name: str) -> "NodeSnapshot":
    """Return the snapshot of a node. Raises ``click.ClickException`` for an unknown node."""
    info = snapshot.scheduler.cache.nodes.get(name)
    seen = None if info is None else info.candidate()
    if seen is None:
        raise click.ClickException(f"there is no node {name}")
    return seen
