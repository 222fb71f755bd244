"""``koord-numa sandbox``: the embedded API server alone, with simulated machines if described."""

import contextlib
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from koord_numa.cli.parameters import Documented

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koord_numa.cli.cluster.objects import Document
    from koord_numa.sandbox.apiserver import DirectStore
    from koord_numa.sandbox.machines import NodeDescription

SANDBOX = "koord-numa-sandbox"
"""Name of the cluster in kubeconfigs of the sandbox."""


@click.command(
    cls=Documented,
    short_help="Serve a Kubernetes API in memory.",
    examples=(
        ("An empty cluster", "sandbox"),
        ("Objects of a file", "sandbox --load cluster.yaml"),
        ("Simulated machines", "sandbox --machines machines.yaml --kubeconfig sandbox.kubeconfig"),
    ),
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free port.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="File to write; default: a temporary file.")
@click.option(
    "--machines",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Machine file, or the topology of one machine; repeatable.",
)
@click.option(
    "--load",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Objects to create, such as a snapshot; repeatable.",
)
def command(port: int, kubeconfig: Path | None, machines: tuple[Path, ...], files: tuple[Path, ...]) -> None:
    """
    Serve an in-memory Kubernetes API on loopback (HTTP) until Ctrl-C.

    Nodes of --load have no kubelet: bound pods do not run.
    """
    import asyncio

    from koord_numa.cli.cluster.objects import documents
    from koord_numa.sandbox.apiserver import ApiError
    from koord_numa.sandbox.machines import load_descriptions

    if kubeconfig is not None and kubeconfig.exists() and SANDBOX not in kubeconfig.read_text(errors="replace"):
        raise click.ClickException(f"{kubeconfig} exists and was not written by koord-numa: it is not overwritten")
    try:
        nodes = [node for path in machines for node in load_descriptions(path)]
        objects = [it for path in files for it in documents(path.read_text(encoding="utf-8"), str(path))]
        with tempfile.TemporaryDirectory(prefix="koord-numa-") as folder:
            asyncio.run(_serve(nodes, objects, (kubeconfig or Path(folder) / "kubeconfig").absolute(), port))
    # The API server rejects invalid parts of a description, such as a malformed label value.
    except (OSError, ValueError, ApiError) as error:
        raise click.ClickException(str(error)) from error


BUILT_IN: Final = ("CustomResourceDefinition", "Namespace", "PriorityClass", "StorageClass", "DeviceClass")
"""Kinds of which the server may have objects itself."""

FIRST: Final = (*BUILT_IN, "Node", "ReplicationController", "ReplicaSet", "StatefulSet")
"""Kinds that others refer to. They are created before them."""


def loadable(objects: "Sequence[Document]") -> "list[dict[str, Any]]":
    """Return objects in an order in which a server accepts them, without the fields that the server sets."""

    def rank(obj: Any) -> int:
        return FIRST.index(obj.get("kind")) if obj.get("kind") in FIRST else len(FIRST)

    made = []
    for obj in sorted(objects, key=rank):
        metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key not in SET_BY_SERVER}
        made.append({**obj, "metadata": metadata})
    return made


CONFLICT: Final = 409

SET_BY_SERVER: Final = frozenset({"resourceVersion", "managedFields", "selfLink", "generation"})


def create_all(store: "DirectStore", objects: "Sequence[Document]") -> None:
    """Create objects. References to owners get the UIDs of the created owners. Raises ``ApiError``."""
    from koord_numa.sandbox.apiserver import ApiError

    owners: dict[tuple[str, str, str], str] = {}  # UID by kind, namespace and name
    for obj in loadable(objects):
        kind, metadata = str(obj.get("kind")), obj["metadata"]
        namespace = str(metadata.get("namespace") or "")
        references = []
        for reference in metadata.get("ownerReferences") or ():
            owner, name = str(reference.get("kind")), str(reference.get("name"))
            uid = owners.get((owner, namespace, name)) or owners.get((owner, "", name))
            if uid:  # the garbage collector deletes objects whose owner does not exist
                references.append({**reference, "uid": uid})
        try:
            made = store.create({**obj, "metadata": {**metadata, "ownerReferences": references}})
        except ApiError as error:
            # The server has some objects itself, such as the namespace default and device classes.
            if error.code != CONFLICT or kind not in BUILT_IN:
                raise
            continue
        owners[kind, namespace, str(metadata.get("name"))] = str(made["metadata"]["uid"])


async def _serve(nodes: "list[NodeDescription]", objects: "list[Document]", kubeconfig: Path, port: int) -> None:
    import asyncio

    from koord_numa.cli.demo.sandbox_cluster import agents_publishing, sandbox_cluster
    from koord_numa.view.text import count

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with sandbox_cluster(nodes, kubeconfig, port) as cluster, agents_publishing(cluster):
        create_all(cluster.server.store, objects)
        click.echo(
            f"serving {cluster.server.url} with {count(len(nodes), 'simulated machine')}"
            + (f" and {count(len(objects), 'object')}" if objects else "")
        )
        click.echo(f"export KUBECONFIG={kubeconfig}")
        with contextlib.suppress(asyncio.CancelledError):
            await stop.wait()
