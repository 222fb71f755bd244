"""
``koord-numa node-agent``: publish the topology of a node, compare decided with effective CPUs, and apply cpusets on
request.
"""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from koord_numa.cli.cluster.access import outer
from koord_numa.cli.parameters import Documented

if TYPE_CHECKING:
    from koord_numa.node.publisher import AgentConfig

OWNERS: Final = ("auto", "scheduler", "kubelet")
PUBLISH: Final = ("auto", "all", "options")
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_path = click.Path(path_type=Path)


@click.command(
    cls=Documented,
    short_help="Publish this node's topology and compare or apply cpusets; --print only shows it.",
    examples=(
        ("This machine, without a cluster", "node-agent --print"),
        ("With the kubelet's settings", "node-agent --print --kubelet-config /var/lib/kubelet/config.yaml"),
    ),
)
@click.option("--sysfs", type=_path, default=Path("/sys"), show_default=True, help="Mount point of sysfs.")
@click.option("--print", "print_only", is_flag=True, help="Print the object as YAML, without a cluster, and exit.")
@click.option("--node-name", envvar="NODE_NAME", help="Name of the Node; default: host name.")
@click.option("--owner", type=click.Choice(OWNERS), default="auto", show_default=True, help="Owner of the CPUs.")
@click.option(
    "--publish", type=click.Choice(PUBLISH), default="auto", show_default=True, help="auto: what other publishers lack."
)
@click.option("--devices", is_flag=True, help="Publish a Device object, without koordlet.")
@click.option("--kubelet-config", type=_path, help="Kubelet configuration file, instead of /configz.")
@click.option("--no-configz", is_flag=True, help="Do not read /configz.")
@click.option("--podresources-socket", type=_path, help="Socket of podresources.")
@click.option(
    "--root-dir",
    default="/var/lib/kubelet",
    show_default=True,
    help="The kubelet's --root-dir, for checkpoint files; empty: do not read them.",
)
@click.option(
    "--cgroups", type=_path, default=Path("/sys/fs/cgroup"), show_default=True, help="Mount point of cgroups."
)
@click.option("--apply", "apply_", is_flag=True, help="Apply cpusets, unless another agent owns the CPUs.")
@click.option("--apply-memory", is_flag=True, help="With --apply: also cpuset.mems.")
@click.option("--cri-socket", type=_path, help="Socket of the container runtime, for --apply.")
@click.option(
    "--nri-socket",
    default="/var/run/nri/nri.sock",
    show_default=True,
    help="With --apply: sets CPUs before containers start, if the socket exists; empty: unused.",
)
@click.option(
    "--direct-writes", is_flag=True, help="With --apply: write cgroups directly, not through the container runtime."
)
@click.option("--release", is_flag=True, help="Return all CPUs to all containers and exit; needs --cri-socket.")
@click.option(
    "--daemon-set",
    envvar="DAEMON_SET",
    default="",
    help="namespace/name of the DaemonSet whose deletion returns all CPUs.",
)
@click.option(
    "--koordlet-namespace",
    default="koordinator-system",
    show_default=True,
    help="Namespace of koordlet, which disables --apply on its nodes.",
)
@click.option("--proc", type=_path, default=Path("/proc"), show_default=True, help="Mount point of procfs.")
@click.option(
    "--run-dir", type=_path, default=Path("/run"), show_default=True, help="The host's /run, for irqbalance's socket."
)
@click.option(
    "--state-dir",
    type=_path,
    help="Directory for original affinities of interrupts; default: interrupts are not moved.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), default=0, help="Port of Prometheus metrics; 0: none.")
@click.option("--metrics-tls", is_flag=True, help="Serve metrics over TLS, to users who may get /metrics.")
@click.option("--tls-cert-file", type=_path, help="For metrics; default: self-signed.")
@click.option("--tls-private-key-file", type=_path, help="For metrics.")
@click.option("--kubeconfig", type=_path, callback=outer, help="For tests; default: the service account.")
def command(**options: Any) -> None:
    """
    Publish the NodeResourceTopology of this node, and compare the CPUs of containers with the decided CPUs.

    --apply sets the decided CPUs. --print exits with 1 if the machine cannot be described.
    """
    # Late imports: ``--print`` is meant for nodes with little memory, and the agent stays small.
    import logging

    from koord_numa.cli.logs import PrintableFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    options["node_name"] = options["node_name"] or socket.gethostname()
    if options["print_only"]:
        click.echo(_printed(options), nl=False)
    else:
        _run(options)


def _printed(options: dict[str, Any]) -> str:
    import yaml

    from koord_numa.node.kubelet_files import KubeletConfigError, read_kubelet_config
    from koord_numa.node.published_objects import NodeFacts, cpu_owner, fresh_resources, topology_object
    from koord_numa.node.sysfs import SysfsError, read_host

    try:
        host = read_host(options["sysfs"])
        kubelet = read_kubelet_config(options["kubelet_config"]) if options["kubelet_config"] else None
        resources = None if kubelet is None else fresh_resources(host, kubelet)
    except (SysfsError, KubeletConfigError) as error:
        raise click.ClickException(str(error)) from None
    for warning in host.warnings:
        click.echo(f"Warning: {warning}", err=True)
    owner = cpu_owner(options["owner"], kubelet)
    if kubelet is not None and kubelet.cpu_policy == "static" and not (kubelet.reserved_cpus or kubelet.reserved_count):
        click.echo(
            "Warning: the configuration reserves no CPU, and a static kubelet needs a reservation to start", err=True
        )
    facts = NodeFacts(name=options["node_name"], host=host, owner=owner, kubelet=kubelet, resources=resources)
    # no folding: annotations are JSON in one line
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the C implementation if available
    return str(yaml.dump(topology_object(facts), Dumper=dumper, sort_keys=False, width=1 << 20))


def _run(options: dict[str, Any]) -> None:
    import asyncio

    from koord_numa.cluster.credentials import NoCredentials
    from koord_numa.node.agent import ApplyRefused
    from koord_numa.node.api_client import NodeApiError
    from koord_numa.node.publisher import AgentConfig, Publish

    config = AgentConfig(
        node=options["node_name"],
        sysfs=options["sysfs"],
        cgroups=options["cgroups"],
        kubelet_config=options["kubelet_config"],
        configz=not options["no_configz"],
        podresources=options["podresources_socket"],
        root_dir=Path(options["root_dir"]) if options["root_dir"] else None,
        cri_socket=options["cri_socket"],
        nri_socket=Path(options["nri_socket"]) if options["nri_socket"] else None,
        publish=Publish(options["publish"]),
        owner=options["owner"],
        devices=options["devices"],
        apply=options["apply_"],
        apply_memory=options["apply_memory"],
        direct_writes=options["direct_writes"],
        daemon_set=options["daemon_set"],
        koordlet_namespace=options["koordlet_namespace"],
        metrics_port=options["metrics_port"],
        metrics_tls=options["metrics_tls"],
        tls_cert_file=options["tls_cert_file"],
        tls_private_key_file=options["tls_private_key_file"],
        proc=options["proc"],
        run=options["run_dir"],
        state=options["state_dir"],
    )
    try:
        asyncio.run(_main(config, options["kubeconfig"], release=options["release"]))
    except (NodeApiError, ApplyRefused, NoCredentials) as error:
        raise click.ClickException(str(error)) from None


async def _main(config: "AgentConfig", kubeconfig: Path | None, *, release: bool) -> None:
    import asyncio
    import signal

    from koord_numa.cluster.credentials import load_credentials, service_account
    from koord_numa.node.agent import Agent
    from koord_numa.node.api_client import NodeApi

    # Never the user's own kubeconfig: an agent writes objects.
    async with NodeApi(load_credentials(kubeconfig) if kubeconfig else service_account()) as api:
        agent = Agent(config, api)
        if release:
            click.echo(f"returned all CPUs to {await agent.release_only()} containers")
            return
        stop = asyncio.Event()
        # Both signals stop the agent in order. CPUs are released only when the DaemonSet is deleted.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await agent.run(stop)
