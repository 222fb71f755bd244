"""``koord-numa snapshot``: every object that decides where pods go, in one file that all commands read back by ``--from``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import yaml

from koord_numa.cli.cluster.access import Access, with_cluster
from koord_numa.cli.cluster.hashed_names import hash_names, short_hash
from koord_numa.cli.cluster.objects import list_raw, no_right_to_list
from koord_numa.wire.images import normalized

DROPPED: Final = frozenset(
    [
        "managedFields",
        "kubectl.kubernetes.io/last-applied-configuration",
        "env",
        "envFrom",
        "command",
        "args",
        "imageID",
        "selfLink",
        "template",
        "volumeClaimTemplates",
        "clusterIP",
        "clusterIPs",
        "externalIPs",
        "addresses",
        "podIP",
        "podIPs",
        "hostIP",
        "hostIPs",
    ]
)
"""Fields that decide nothing, and often say more than their owner wants to share."""


@click.command(short_help="Write the objects that decide to a file.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file to write."
)
@click.option(
    "--hash-names", "hide", is_flag=True, help="Replace names of namespaces, pods, nodes and volumes by hashes."
)
@with_cluster
def command(output: Path, hide: bool, access: Access) -> None:
    """
    Write nodes, topologies, pods, namespaces, volumes, claims, storage classes, budgets, priority classes, services and what makes pods to
    one file.

    Commands, environments and templates are left out, and of images only hashes of their names are written. explain, node, nodes,
    simulate, top and page read it by --from.
    """
    objects, unread = access.run(list_raw)
    if unread:
        click.echo(f"Not written: {no_right_to_list(unread)}", err=True)
    kept = [trimmed(each) for each in objects]
    if hide:
        kept = hash_names(kept)
    try:
        with output.open("w", encoding="utf-8") as file:
            yaml.dump_all(kept, file, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}") from error
    click.echo(f"{output}: {len(kept)} objects")


def trimmed(value: Any, key: str = "", inside: str = "") -> Any:
    """The object without fields that decide nothing, and with hashes for names of images: which are the same is all that decides."""
    if isinstance(value, Mapping):
        return {name: trimmed(item, name, key) for name, item in value.items() if name not in DROPPED}
    if isinstance(value, list):
        return [trimmed(item, key, inside) for item in value]
    is_image = key == "image" or (inside, key) in (("image", "reference"), ("images", "names"))
    return short_hash(normalized(value)) if is_image and isinstance(value, str) and value else value
