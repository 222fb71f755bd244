"""
``koord-numa page``: the page of the scheduler as one self-contained HTML file, for bug reports and for use without a
scheduler.
"""

from pathlib import Path
from urllib.parse import quote

import click

from koord_numa.cli.cluster.access import Access, with_access, with_scheduler
from koord_numa.cli.parameters import Documented


@click.command(
    cls=Documented,
    short_help="Write the page as one HTML file.",
    examples=(("For any browser", "page -o cluster.html"),),
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file to write."
)
@with_scheduler
@with_access
def command(output: Path, access: Access, scheduler: str) -> None:
    """
    Write one HTML file with the cluster, every node and every waiting pod. The file needs no network.

    History and decisions come from the running scheduler, if it is reachable.
    """
    from koord_numa.cli.cluster.running import ask
    from koord_numa.cli.cluster.views import cluster_view, node_view, waiting_view
    from koord_numa.cli.render.output import now
    from koord_numa.view.page import written_page
    from koord_numa.view.waiting import decisions_document

    snapshot = access.snapshot()
    documents = {
        "/api/v1/cluster": cluster_view(snapshot),
        "/api/v1/waiting": waiting_view(snapshot),
        "/api/v1/decisions": decisions_document((), now(), {}),
    }
    for path in ("/api/v1/history", "/api/v1/decisions"):
        if (answered := ask(access, scheduler, path)) is None:
            break
        documents[path] = dict(answered.document)
    # The file contains every document that the page may request, because there is no server.
    for name in sorted(snapshot.scheduler.cache.nodes):
        found = node_view(snapshot, name)
        if found is not None:
            documents[f"/api/v1/nodes/{quote(name, safe='')}"] = found
    try:
        output.write_text(written_page(documents), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error
    click.echo(f"{output}: {len(documents)} documents")
