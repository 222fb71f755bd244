"""
Access of a command to its cluster as in kubectl: kubeconfig, context and namespace, or files in place of a cluster.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from koord_numa.cli.cluster.objects import ClusterObjects, list_objects, no_right_to_list, read_files
from koord_numa.cli.cluster.snapshot import Snapshot, snapshot_of
from koord_numa.cluster.client import Api
from koord_numa.cluster.credentials import NoCredentials, current_namespace
from koord_numa.ports import ClusterError, Unavailable
from koord_numa.sandbox.apiserver.errors import ApiError
from koord_numa.sandbox.apiserver.rules.selectors import parse_labels
from koord_numa.settings import Settings, SettingsError, load_settings

PREFIXES: Final = ("pod", "pods", "po")


def pod_name(text: str, namespace: str | None, default: str) -> tuple[str, str]:
    """Return namespace and name. Raises ``click.BadParameter`` when ``-n`` contradicts the namespace in the name."""
    before, slash, name = text.rpartition("/")
    if not slash or before in PREFIXES:
        return namespace or default, name
    if namespace not in (None, before):
        raise click.BadParameter(f"{text} is in namespace {before}, not in {namespace}")
    return before, name


EVERYWHERE: Final = ""
"""Placeholder for all namespaces."""


Command = Callable[..., Any]

Selects = Callable[[Mapping[str, str]], bool]
"""A predicate on labels."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """The cluster and the configuration of one command. With ``files`` there is no cluster."""

    kubeconfig: Path | None = None
    context: str | None = None
    config: Path | None = None
    files: tuple[Path, ...] = ()

    @property
    def settings(self) -> Settings:
        """The configuration. Raises ``click.ClickException``."""
        try:
            return load_settings(self.config) if self.config else Settings()
        except SettingsError as error:
            raise click.ClickException(str(error)) from error

    @property
    def namespace(self) -> str:
        """The namespace of the context, or ``default``. Raises ``click.ClickException``."""
        try:
            return "default" if self.files else current_namespace(self.kubeconfig, self.context)
        except NoCredentials as error:
            raise failure(error) from error

    def objects(self) -> ClusterObjects:
        """Return all objects that affect decisions. Raises ``click.ClickException`` with a message in one line."""
        if self.files:
            return read_files(self.files)
        found = self.run(list_objects)
        # On stderr, so that programs can parse the output.
        if found.unread:
            click.echo(f"Not counted: {no_right_to_list(found.unread)}", err=True)
        return found

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the cluster. Raises ``click.ClickException`` with a message in one line."""
        return snapshot_of(self.settings, self.objects())

    async def connect(self) -> Api:
        """Create a connection without sending anything. Raises ``NoCredentials``."""
        return await Api.connect(self.kubeconfig, context=self.context)

    def run(self, work: Callable[[Api], Awaitable[T]]) -> T:
        """
        Run a coroutine with a connection and return its result.

        Raises ``click.ClickException`` with a message in one line.
        """

        async def connected() -> T:
            async with await self.connect() as api:
                return await work(api)

        try:
            return asyncio.run(connected())
        except (NoCredentials, ClusterError) as error:
            raise failure(error) from error


def failure(error: Exception) -> click.ClickException:
    """Return an error as a message in one line, with advice if there is any."""
    text = " ".join(str(error).split())
    if isinstance(error, Unavailable):
        text += "; is the context right? (--context, --kubeconfig; --from FILE needs no cluster)"
    return click.ClickException(text)


KUBECONFIG: Final = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Default: service account, $KUBECONFIG, ~/.kube/config.",
)
CONTEXT: Final = click.option("--context", help="A context of the kubeconfig; default: its current one.")
CONFIG: Final = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="KOORD_NUMA_CONFIG",
    help="The scheduler's KoordNumaConfiguration; default: its defaults.",
)
FILES: Final = click.option(
    "--from",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Objects as kubectl get -o yaml or snapshot print them, or a trace's machines (.csv), instead of a cluster; repeatable.",
)


def with_access(command: Command) -> Command:
    """Add the options of a command that reads a cluster or files. The command receives ``access``."""
    return FILES(with_cluster(command))


def with_cluster(command: Command) -> Command:
    """Add the options of a command that needs a cluster. The command receives ``access``."""

    def run(kubeconfig: Path | None, context: str | None, config: Path | None, **rest: Any) -> Any:
        return command(access=Access(kubeconfig, context, config, rest.pop("files", ())), **rest)

    return KUBECONFIG(CONTEXT(CONFIG(update_wrapper(run, command))))


def with_watch(command: Command) -> Command:
    """Add ``-w``. The command receives ``watch``."""
    return click.option("-w", "--watch", is_flag=True, help="Go on, and print what changes.")(command)


def with_selector(command: Command) -> Command:
    """Add ``-l``. The command receives ``selects``, a predicate on labels."""

    def parsed(_: click.Context, __: click.Parameter, text: str) -> Selects:
        try:
            requirements = parse_labels(text) if text else ()
        except ApiError as error:
            raise click.BadParameter(str(error)) from None
        # A predicate, so that commands do not depend on the syntax.
        return lambda labels: all(requirement.holds(dict(labels)) for requirement in requirements)

    return click.option(
        "-l",
        "--selector",
        "selects",
        default="",
        callback=parsed,
        metavar="LABELS",
        help="Labels, as kubectl has them.",
    )(command)


def with_namespace(command: Command) -> Command:
    """Add ``-n``. The command receives ``namespace``, or None for the namespace of the context."""
    return click.option("-n", "--namespace", help="Default: that of the context, else default.")(command)
