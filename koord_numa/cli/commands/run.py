"""``koord-numa run``: run the operator as a process, as in the deployment."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from koord_numa.cli.cluster.access import outer
from koord_numa.cli.parameters import Documented
from koord_numa.wire.names import DEFAULT_PORT

if TYPE_CHECKING:
    import asyncio

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
SOURCES: Final = ("Kopf", "Informer")


@click.command(
    cls=Documented,
    short_help="Run the scheduler.",
    examples=(
        (
            "From a workstation",
            "run --kubeconfig cluster.yaml --no-leader-elect",
        ),
        ("As in the deployment", "run --log-format json --secure-port 10259"),
    ),
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    callback=outer,
    help="Default: service account, $KUBECONFIG, ~/.kube/config.",
)
@click.option("--config", type=click.Path(path_type=Path), envvar="KOORD_NUMA_CONFIG", help="A KoordNumaConfiguration.")
@click.option(
    "--namespace",
    envvar="KOORD_NUMA_LEASE_NAMESPACE",
    help="Namespace of the Lease; default: as configured.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    envvar="KOORD_NUMA_METRICS_PORT",
    help="HTTP on loopback; 0: a free port.",
)
@click.option(
    "--secure-port",
    type=click.IntRange(0, 65535),
    envvar="KOORD_NUMA_SECURE_PORT",
    help="HTTPS on all interfaces, with delegated authentication and authorization; default: none, in deployments 10259.",
)
@click.option(
    "--tls-cert-file", type=click.Path(path_type=Path), help="Certificate of the secure port; default: self-signed."
)
@click.option("--tls-private-key-file", type=click.Path(path_type=Path), help="Private key of the secure port.")
@click.option(
    "--pod-source",
    type=click.Choice(SOURCES),
    envvar="KOORD_NUMA_POD_SOURCE",
    help="Watch of waiting pods; default: as configured.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True, envvar="KOORD_NUMA_LEADER_ELECT")
@click.option(
    "--identity",
    default="",
    envvar="KOORD_NUMA_IDENTITY",
    help="Name in the Lease; default: host name and random suffix.",
)
def command(
    kubeconfig: Path | None,
    config: Path | None,
    namespace: str | None,
    metrics_port: int,
    secure_port: int | None,
    tls_cert_file: Path | None,
    tls_private_key_file: Path | None,
    pod_source: str | None,
    log_level: str,
    log_format: str,
    leader_elect: bool,
    identity: str,
) -> None:
    """Schedule pods until SIGTERM."""
    import gc

    # A tenth of the time of the imports. ``GarbageCollection`` enables it when the cluster is known.
    gc.disable()
    import asyncio

    from koord_numa.handlers import prepare_kopf

    prepare_kopf()
    from koord_numa.app.runtime import Options, SecureServing
    from koord_numa.cli.logs import LogFormat, configure_logging
    from koord_numa.cluster.credentials import NoCredentials
    from koord_numa.operator import serve
    from koord_numa.settings import PodSource, Settings, SettingsError, load_settings

    configure_logging(log_level, LogFormat(log_format))
    try:
        settings = load_settings(config) if config else Settings()
        if namespace:
            settings = settings.model_copy(update={"lease": settings.lease.model_copy(update={"namespace": namespace})})
        if pod_source:
            settings = settings.model_copy(update={"pod_source": PodSource(pod_source)})
        if (tls_cert_file is None) != (tls_private_key_file is None):
            raise click.UsageError("--tls-cert-file and --tls-private-key-file must be set together")
        secure = None if secure_port is None else SecureServing(secure_port, tls_cert_file, tls_private_key_file)
        options = Options(settings, kubeconfig, identity, leader_elect, metrics_port, secure)
        with asyncio.Runner(loop_factory=_loop) as runner:
            runner.run(serve(options))
    except (SettingsError, NoCredentials, OSError) as error:
        raise click.ClickException(str(error)) from error


def _loop() -> "asyncio.AbstractEventLoop":
    """Return an event loop of uvloop if available. uvloop halves the CPU time per request."""
    if sys.platform == "win32":
        import asyncio

        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
