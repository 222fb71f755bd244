"""``koord-numa sandbox``: the embedded API server alone, with simulated machines if described."""

import contextlib
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koord_numa.cli.parameters import Documented

if TYPE_CHECKING:
    from koord_numa.sandbox.machines import NodeDescription

SANDBOX = "koord-numa-sandbox"
"""Name of the cluster in kubeconfigs of the sandbox."""


@click.command(
    cls=Documented,
    short_help="Serve a Kubernetes API in memory.",
    examples=(
        ("An empty cluster", "sandbox"),
        ("A cluster of simulated machines", "sandbox --machines machines.yaml --kubeconfig sandbox.kubeconfig"),
    ),
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Where to write the kubeconfig; default: a temporary file."
)
@click.option(
    "--machines",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="A YAML or JSON description of machines, or one machine's topology; may be given several times.",
)
def command(port: int, kubeconfig: Path | None, machines: tuple[Path, ...]) -> None:
    """Serve an in-memory Kubernetes API on loopback, plain HTTP, until Ctrl-C."""
    import asyncio

    from koord_numa.sandbox.apiserver import ApiError
    from koord_numa.sandbox.machines import load_descriptions

    if kubeconfig is not None and kubeconfig.exists() and SANDBOX not in kubeconfig.read_text(errors="replace"):
        raise click.ClickException(f"{kubeconfig} is there already and none of ours: it is not overwritten")
    try:
        nodes = [node for path in machines for node in load_descriptions(path)]
        with tempfile.TemporaryDirectory(prefix="koord-numa-") as folder:
            asyncio.run(_serve(nodes, (kubeconfig or Path(folder) / "kubeconfig").absolute(), port))
    # The API server rejects invalid parts of a description, such as a malformed label value.
    except (OSError, ValueError, ApiError) as error:
        raise click.ClickException(str(error)) from error


async def _serve(nodes: "list[NodeDescription]", kubeconfig: Path, port: int) -> None:
    import asyncio

    from koord_numa.cli.demo.sandbox_cluster import agents_publishing, sandbox_cluster
    from koord_numa.view.text import count

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with sandbox_cluster(nodes, kubeconfig, port) as cluster, agents_publishing(cluster):
        click.echo(f"serving {cluster.server.url} with {count(len(nodes), 'simulated machine')}")
        click.echo(f"export KUBECONFIG={kubeconfig}")
        with contextlib.suppress(asyncio.CancelledError):
            await stop.wait()
