"""``koord-numa node-agent``: publish a node's topology, compare decided with effective CPUs, and apply cpusets where asked to."""

import os
import socket
from pathlib import Path
from typing import Final

import click

OWNERS: Final = ("auto", "scheduler", "kubelet")


@click.command(short_help="Publish this node's topology (and more); --print only shows it.")
@click.option("--sysfs", type=click.Path(path_type=Path), default=Path("/sys"), show_default=True)
@click.option(
    "--print", "print_only", is_flag=True, help="Print the NodeResourceTopology as YAML and end. Needs no cluster."
)
@click.option("--node-name", envvar="NODE_NAME", help="Name of the Node; the host's name without it.")
@click.option(
    "--kubelet-config", type=click.Path(path_type=Path), help="The kubelet's configuration file, instead of /configz."
)
@click.option("--owner", type=click.Choice(OWNERS), default="auto", show_default=True, help="Who decides on CPUs.")
def command(sysfs: Path, print_only: bool, node_name: str | None, kubelet_config: Path | None, owner: str) -> None:
    """
    Publish the NodeResourceTopology of this node.

    With --print it is printed as YAML, without any cluster; exits with 1 and says why when the machine cannot be described.
    """
    from koord_numa.node.kubelet_config import KubeletConfigError, read_kubelet_config  # noqa: PLC0415
    from koord_numa.node.sysfs import SysfsError, read_host  # noqa: PLC0415

    name = node_name or os.environ.get("HOSTNAME") or socket.gethostname()
    try:
        host = read_host(sysfs)
        kubelet = read_kubelet_config(kubelet_config) if kubelet_config else None
    except (SysfsError, KubeletConfigError) as error:
        raise click.ClickException(str(error)) from None
    for warning in host.warnings:
        click.echo(f"Warning: {warning}", err=True)
    if not print_only:
        raise click.ClickException("only --print so far")
    import yaml  # noqa: PLC0415

    from koord_numa.node.topology_object import NodeFacts, cpu_owner, topology_object  # noqa: PLC0415

    facts = NodeFacts(name=name, host=host, owner=cpu_owner(owner, kubelet), kubelet=kubelet)
    click.echo(yaml.safe_dump(topology_object(facts), sort_keys=False, width=1 << 20), nl=False)
