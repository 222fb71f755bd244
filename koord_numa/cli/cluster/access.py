"""How a command reaches its cluster, as kubectl does: kubeconfig, context and namespace; or files instead of a cluster."""

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
    """Namespace and name. Raises ``click.BadParameter`` when ``-n`` says another namespace than the name does."""
    before, slash, name = text.rpartition("/")
    if not slash or before in PREFIXES:
        return namespace or default, name
    if namespace not in (None, before):
        raise click.BadParameter(f"{text} is in namespace {before}, not in {namespace}")
    return before, name


EVERYWHERE: Final = ""
"""Stands for all namespaces."""


Command = Callable[..., Any]

Selects = Callable[[Mapping[str, str]], bool]
"""A predicate on labels."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """The cluster and the rules of one command. With ``files`` there is no cluster."""

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
        """The namespace of the context, ``default`` where it names none. Raises ``click.ClickException``."""
        try:
            return "default" if self.files else current_namespace(self.kubeconfig, self.context)
        except NoCredentials as error:
            raise failure(error) from error

    def objects(self) -> ClusterObjects:
        """Everything that decides. Raises ``click.ClickException`` with one line for the user."""
        if self.files:
            return read_files(self.files)
        found = self.run(list_objects)
        # On stderr: the output stays a document that programs can read.
        if found.unread:
            click.echo(f"Not counted: {no_right_to_list(found.unread)}", err=True)
        return found

    def snapshot(self) -> Snapshot:
        """The cluster of this moment. Raises ``click.ClickException`` with one line for the user."""
        return snapshot_of(self.settings, self.objects())

    async def connect(self) -> Api:
        """A connection; nothing is sent yet. Raises ``NoCredentials``."""
        return await Api.connect(self.kubeconfig, context=self.context)

    def run(self, work: Callable[[Api], Awaitable[T]]) -> T:
        """The result of a coroutine that uses a connection. Raises ``click.ClickException`` with one line for the user."""

        async def connected() -> T:
            async with await self.connect() as api:
                return await work(api)

        try:
            return asyncio.run(connected())
        except (NoCredentials, ClusterError) as error:
            raise failure(error) from error


def failure(error: Exception) -> click.ClickException:
    """An error in one line, with the way out where there is one."""
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
    """Options for a command that reads a cluster or files; it gets them as ``access``."""
    return FILES(with_cluster(command))


def with_cluster(command: Command) -> Command:
    """Options for a command that needs a cluster; it gets them as ``access``."""

    def run(kubeconfig: Path | None, context: str | None, config: Path | None, **rest: Any) -> Any:
        return command(access=Access(kubeconfig, context, config, rest.pop("files", ())), **rest)

    return KUBECONFIG(CONTEXT(CONFIG(update_wrapper(run, command))))


def with_watch(command: Command) -> Command:
    """``-w`` for a command; it gets ``watch``."""
    return click.option("-w", "--watch", is_flag=True, help="Go on, and print what changes.")(command)


def with_selector(command: Command) -> Command:
    """``-l`` for a command; it gets ``selects``, a predicate on labels."""

    def parsed(_: click.Context, __: click.Parameter, text: str) -> Selects:
        try:
            requirements = parse_labels(text) if text else ()
        except ApiError as error:
            raise click.BadParameter(str(error)) from None
        # A predicate, so that commands need to know nothing of the syntax.
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
    """``-n`` for a command; it gets ``namespace``, ``None`` for that of the context."""
    return click.option("-n", "--namespace", help="Default: that of the context, else default.")(command)
