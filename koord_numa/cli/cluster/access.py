"""
Access of a command to its cluster as in kubectl: kubeconfig, context and namespace, or files in place of a cluster.

Options and their completion. Imports little, because a completion of the shell imports it on each key.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from koord_numa.cli.parameters import DurationParameter
from koord_numa.cluster.credentials import NO_OVERRIDES, NoCredentials, Overrides, contexts_of, load_credentials
from koord_numa.core.value_objects import ValueObject
from koord_numa.wire.names import DEFAULT_SCHEDULER, LEASE_NAMESPACE

if TYPE_CHECKING:
    from koord_numa.cli.cluster.objects import ClusterObjects
    from koord_numa.cli.cluster.snapshot import Snapshot
    from koord_numa.cluster.blocking import BlockingApi
    from koord_numa.cluster.client import Api
    from koord_numa.cluster.resources import Resource
    from koord_numa.settings import Settings

PREFIXES: Final = ("pod", "pods", "po")

COMPLETION_SECONDS: Final = 3.0
"""Timeout of requests for completion, as in kubectl."""


def pod_name(text: str, namespace: str | None, default: str) -> tuple[str, str]:
    """Return namespace and name. Raises ``click.BadParameter`` when ``-n`` contradicts the namespace in the name."""
    before, slash, name = text.rpartition("/")
    if not slash or before in PREFIXES:
        return namespace or default, name
    if namespace not in (None, before):
        raise click.BadParameter(f"{text} is in namespace {before}, not in {namespace}")
    return before, name


Command = Callable[..., Any]

Selects = Callable[[Mapping[str, str]], bool]
"""A predicate on labels."""

T = TypeVar("T")


class Access(ValueObject):
    """The cluster and the configuration of one command. With ``files`` there is no cluster."""

    kubeconfig: Path | None = None
    overrides: Overrides = NO_OVERRIDES
    timeout: float | None = None
    """Seconds for a response, 0 for no limit, None for the default."""
    config: Path | None = None
    files: tuple[Path, ...] = ()

    @property
    def settings(self) -> "Settings":
        """The configuration. Raises ``click.ClickException``."""
        from koord_numa.settings import Settings, SettingsError, load_settings

        try:
            return load_settings(self.config) if self.config else Settings()
        except SettingsError as error:
            raise click.ClickException(str(error)) from error

    @property
    def lease(self) -> tuple[str, str]:
        """Name and namespace of the Lease. Raises ``click.ClickException``."""
        if self.config is None:
            # The settings take 0.1 s to import.
            return DEFAULT_SCHEDULER, LEASE_NAMESPACE
        lease = self.settings.lease
        return lease.name, lease.namespace

    @property
    def namespace(self) -> str:
        """The namespace of the context, or ``default``. Raises ``click.ClickException``."""
        if self.files:
            return "default"
        try:
            return load_credentials(self.kubeconfig, self.overrides).namespace
        except NoCredentials as error:
            raise failure(error) from error

    def objects(self, kinds: Container[str] | None = None) -> "ClusterObjects":
        """
        Return all objects that affect decisions, or those of some kinds.

        Raises ``click.ClickException`` with a message in one line.
        """
        from koord_numa.cli.cluster.objects import list_objects, no_right_to_list, read_files

        if self.files:
            return read_files(self.files)
        found = self.ask(list_objects if kinds is None else partial(list_objects, kinds=kinds))
        # On stderr, so that programs can parse the output.
        if found.unread:
            click.echo(f"Not counted: {no_right_to_list(found.unread)}", err=True)
        return found

    def snapshot(self) -> "Snapshot":
        """Return a snapshot of the cluster. Raises ``click.ClickException`` with a message in one line."""
        from koord_numa.cli.cluster.snapshot import snapshot_of

        return snapshot_of(self.settings, self.objects())

    def open(self, timeout: float | None = None) -> "BlockingApi":
        """Create a connection without sending anything. Raises ``NoCredentials``."""
        from koord_numa.cluster.blocking import BlockingApi

        credentials = load_credentials(self.kubeconfig, self.overrides)
        return BlockingApi(credentials, self.timeout if timeout is None else timeout)

    def names(self, resource: "Resource", namespace: str | None = None) -> list[str]:
        """
        Return the names of all nodes or namespaces, or of the pods of a namespace, for completion.

        Raises ``NoCredentials`` and ``ClusterError``.
        """
        if self.files:
            found = self.objects()
            nodes = [node.name for node in found.nodes]
            pods = [pod.key.name for pod in found.pods if pod.key.namespace == (namespace or "default")]
            return {"nodes": nodes, "pods": pods}.get(resource.plural, [])
        from koord_numa.cluster.blocking import METADATA

        with self.open(COMPLETION_SECONDS) as api:
            where = (namespace or api.credentials.namespace) if resource.namespaced else ""
            listed = api.items(resource, namespace=where, accept=METADATA)
            return [str(item["metadata"]["name"]) for item in listed]

    def authorization(self) -> str:
        """Return the Authorization header, empty without credentials. Raises ``NoCredentials``."""
        return load_credentials(self.kubeconfig, self.overrides).authorization.value()

    async def connect(self) -> "Api":
        """Create an asynchronous connection without sending anything. Raises ``NoCredentials``."""
        from koord_numa.cluster.client import Api

        return Api(load_credentials(self.kubeconfig, self.overrides))

    def ask(self, work: "Callable[[BlockingApi], T]") -> T:
        """
        Run a function with a connection and return its result.

        Raises ``click.ClickException`` with a message in one line.
        """
        from koord_numa.ports import ClusterError

        try:
            with self.open() as api:
                return work(api)
        except (NoCredentials, ClusterError) as error:
            raise failure(error) from error


def failure(error: Exception) -> click.ClickException:
    """Return an error as a message in one line, with advice if there is any."""
    from koord_numa.ports import Unavailable

    text = " ".join(str(error).split())
    if isinstance(error, Unavailable):
        text += "; is the context right? (--context, --kubeconfig; --from FILE needs no cluster)"
    return click.ClickException(text)


# Options


def outer(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Return the value of an option, or that of the same option before the subcommand, as kubectl accepts both."""
    if value in (None, (), False) and context.parent is not None:
        return context.find_root().params.get(parameter.name or "", value)
    return value


def complete_contexts(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return the completion of contexts, clusters or users of the kubeconfig."""

    def complete(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
        try:
            found = getattr(contexts_of(_value(context, "kubeconfig")), kind)
        except NoCredentials:
            return []
        return _items(found, typed)

    return complete


def complete_names(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return the completion of names of ``pods`` in the namespace, ``nodes``, or ``namespaces``. No names without a cluster."""

    def complete(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
        from koord_numa.cluster.resources import NAMESPACES, NODES, PODS
        from koord_numa.ports import ClusterError

        resource = {"pods": PODS, "nodes": NODES, "namespaces": NAMESPACES}[kind]
        access = access_of(context)
        try:
            names = access.names(resource, _value(context, "namespace") if kind == "pods" else None)
        except (NoCredentials, ClusterError, click.ClickException):
            return []
        return _items(names, typed)

    return complete


def _items(names: Iterable[str], typed: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(typed)]


def _value(context: click.Context, name: str) -> Any:
    return context.params.get(name) or context.find_root().params.get(name)


def access_of(context: click.Context) -> Access:
    """Return the access that the options of a command and those before the subcommand describe."""
    overrides = Overrides(
        context=_value(context, "context"),
        cluster=_value(context, "cluster"),
        user=_value(context, "user"),
        server=_value(context, "server"),
        token=_value(context, "token"),
        as_user=_value(context, "as_user"),
        as_groups=tuple(_value(context, "as_groups") or ()),
        as_uid=_value(context, "as_uid"),
        insecure=bool(_value(context, "insecure")),
    )
    files = tuple(context.params.get("files") or ())
    return Access(
        _value(context, "kubeconfig"), overrides, _value(context, "timeout"), context.params.get("config"), files
    )


_FILE: Final = click.Path(dir_okay=False, path_type=Path)

Decorator = Callable[[Command], Command]


def connection_options(*, before: bool) -> list[Decorator]:
    """Return kubectl's options of the connection, which are accepted ``before`` and after the subcommand."""

    # Shown in the help of the program, as kubectl shows its global options apart from those of commands.
    def option(*names: str, **settings: Any) -> Decorator:
        usual = names[0] in ("--kubeconfig", "--context")
        return click.option(*names, callback=outer, hidden=not (before or usual), **settings)

    return [
        option("--kubeconfig", type=_FILE, help="Default: service account, $KUBECONFIG, ~/.kube/config."),
        option("--context", help="Context; default: current context.", shell_complete=complete_contexts("contexts")),
        option("--cluster", help="Cluster of the kubeconfig.", shell_complete=complete_contexts("clusters")),
        option("--user", help="User of the kubeconfig.", shell_complete=complete_contexts("users")),
        option("-s", "--server", metavar="URL", help="API server."),
        option("--token", help="Bearer token."),
        option("--as", "as_user", metavar="USER", help="User to impersonate."),
        option("--as-group", "as_groups", multiple=True, metavar="GROUP", help="Group to impersonate; repeatable."),
        option("--as-uid", metavar="UID", help="UID to impersonate."),
        option("--insecure-skip-tls-verify", "insecure", is_flag=True, help="Do not verify the server's certificate."),
        option(
            *("--request-timeout", "timeout"),
            type=DurationParameter(),
            metavar="DURATION",
            help="Such as 30s; 0: no limit.",
        ),
    ]  # fmt: skip


CONFIG: Final = click.option(
    "--config",
    type=_FILE,
    envvar="KOORD_NUMA_CONFIG",
    help="KoordNumaConfiguration; default: its defaults.",
)
FILES: Final = click.option(
    "--from",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Read objects from kubectl get -o yaml, snapshot, or a trace's machines (.csv); repeatable.",
)


def with_access(command: Command) -> Command:
    """Add the options of a command that reads a cluster or files. The command receives ``access``."""
    return FILES(with_cluster(command))


_TAKEN: Final = frozenset(
    [
        "kubeconfig",
        "context",
        "cluster",
        "user",
        "server",
        "token",
        "as_user",
        "as_groups",
        "as_uid",
        "insecure",
        "timeout",
        "config",
        "files",
    ]
)
"""Parameters that ``access`` contains."""


def with_cluster(command: Command) -> Command:
    """Add the options of a command that needs a cluster. The command receives ``access``."""

    def run(**options: Any) -> Any:
        rest = {name: value for name, value in options.items() if name not in _TAKEN}
        return command(access=access_of(click.get_current_context()), **rest)

    made: Command = CONFIG(update_wrapper(run, command))
    for option in reversed(connection_options(before=False)):
        made = option(made)
    return made


def with_connection(group: Command) -> Command:
    """Add the options of the connection before the subcommand. The subcommand takes them over."""

    def run(**options: Any) -> Any:
        accepted = {name: value for name, value in options.items() if name not in _TAKEN and name != "namespace"}
        return group(**accepted)

    made: Command = with_namespace(update_wrapper(run, group))
    for option in reversed(connection_options(before=True)):
        made = option(made)
    return made


def with_watch(command: Command) -> Command:
    """Add ``-w``. The command receives ``watch``."""
    return click.option("-w", "--watch", is_flag=True, help="Print changes.")(command)


def with_selector(command: Command) -> Command:
    """Add ``-l``. The command receives ``selects``, a predicate on labels."""

    def parsed(_: click.Context, __: click.Parameter, text: str) -> Selects:
        if not text:
            return lambda _labels: True
        from koord_numa.sandbox.apiserver import ApiError, parse_labels

        try:
            requirements = parse_labels(text)
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
        help="Label selector.",
    )(command)


def with_namespace(command: Command) -> Command:
    """Add ``-n``. The command receives ``namespace``, or None for the namespace of the context."""
    return click.option(
        "-n",
        "--namespace",
        callback=outer,
        help="Default: as in the context.",
        shell_complete=complete_names("namespaces"),
    )(command)


def with_scheduler(command: Command) -> Command:
    """Add ``--scheduler``. The command receives the URL, or an empty string."""
    return click.option(
        "--scheduler",
        default="",
        envvar="KOORD_NUMA_SCHEDULER",
        metavar="URL",
        help="Scheduler that answers, such as http://localhost:10251; none: evaluate the objects. "
        "Default: the leader by port-forward, otherwise the objects.",
    )(command)
