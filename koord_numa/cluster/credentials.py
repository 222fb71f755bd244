"""
Address and credentials of the API server: a kubeconfig as kubectl reads it, or the service account of the pod.

Modules are imported where they are used, because help and completion of commands import this one. kubernetes-asyncio,
which takes a second, is imported for users with an ``auth-provider`` only.
"""

import base64
import binascii
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from koord_numa.core.value_objects import MutableObject, ValueObject, value_field

if TYPE_CHECKING:
    import ssl

Headers: TypeAlias = tuple[tuple[str, str], ...]
"""HTTP headers as pairs. A name may occur several times."""

Entry: TypeAlias = Mapping[str, Any]

DEFAULT_KUBECONFIG: Final = "~/.kube/config"
"""Default path of kubectl."""

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

TOKEN_SECONDS: Final = 60.0
"""Seconds after which a token file is read again. The kubelet renews it long before it expires."""

EXPIRY_SECONDS: Final = 10.0
"""Seconds before its expiry at which a token is replaced, as in client-go."""

PLUGIN_SECONDS: Final = 120.0
"""Maximum seconds that a credential plugin may take. It may wait for a login in a browser."""


class NoCredentials(Exception):
    """There is neither a service account nor a usable kubeconfig."""


def _unusable(why: object) -> NoCredentials:
    return NoCredentials(f"no credentials for a cluster: {why}")


class Overrides(ValueObject):
    """Values of a command line that replace those of the kubeconfig, as kubectl's flags of the same names."""

    context: str | None = None
    cluster: str | None = None
    user: str | None = None
    server: str | None = None
    token: str | None = None
    as_user: str | None = None
    as_groups: tuple[str, ...] = ()
    as_uid: str | None = None
    insecure: bool = False

    def __bool__(self) -> bool:
        return self != NO_OVERRIDES


NO_OVERRIDES: Final = Overrides()


class Authorization:
    """The ``Authorization`` header of requests. ``read`` returns it and the monotonic time at which it must be read again."""

    def __init__(self, read: Callable[[], tuple[str, float]]) -> None:
        self._read = read
        self._value = ""
        self._until = 0.0
        self._lock = threading.Lock()

    @property
    def is_due(self) -> bool:
        """True if the header has expired, so that ``value`` reads it again."""
        return monotonic() >= self._until

    def value(self) -> str:
        """Return the header, empty without credentials. Raises ``OSError`` and ``NoCredentials``."""
        # A lock, so that several threads run a plugin once.
        with self._lock:
            if self.is_due:
                self._value, self._until = self._read()
            return self._value


def constant(value: str) -> Authorization:
    """Return a header that never changes."""
    return Authorization(lambda: (value, float("inf")))


class Credentials(MutableObject):
    """
    Address of an API server, TLS settings, and the credentials of a user.

    Certificates are PEM texts, or paths of files. ``namespace`` is that of the context.
    """

    server: str
    authorization: Authorization = value_field(default_factory=lambda: constant(""))
    impersonation: Headers = ()
    namespace: str = "default"
    ca_data: str = ""
    ca_file: str = ""
    certificate: tuple[str, str] | None = None
    """PEM texts of the client certificate and its key."""
    verify: bool = True
    server_name: str = ""
    proxy: str = ""

    def tls(self) -> "ssl.SSLContext":
        """Return the TLS context. Raises ``NoCredentials`` for unusable certificates."""
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca_file or None, cadata=self.ca_data or None)
            if self.certificate is not None:
                _load_certificate(context, *self.certificate)
        except (OSError, ValueError) as error:
            raise _unusable(f"the certificates cannot be used: {error}") from error
        # As Go: certificate authorities of many clusters lack extensions that Python 3.13 demands.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _load_certificate(context: "ssl.SSLContext", certificate: str, key: str) -> None:
    import tempfile

    # OpenSSL reads certificates of clients from files only.
    with tempfile.TemporaryDirectory(prefix="koord-numa-") as folder:
        path = Path(folder) / "client.pem"
        path.touch(mode=0o600)
        path.write_text(f"{certificate}\n{key}\n", encoding="utf-8")
        context.load_cert_chain(path)


def load_credentials(kubeconfig: Path | None = None, overrides: Overrides = NO_OVERRIDES) -> Credentials:
    """
    Load the credentials of the API server without sending a request.

    In this order: the given kubeconfig, the pod's service account, the files in ``KUBECONFIG`` or ``~/.kube/config``.
    With overrides a kubeconfig is used also inside a pod. Raises ``NoCredentials``.
    """
    # ``KUBECONFIG`` inside a pod is set deliberately and takes precedence over the service account.
    if (
        kubeconfig is None
        and not overrides
        and "KUBERNETES_SERVICE_HOST" in os.environ
        and "KUBECONFIG" not in os.environ
    ):
        return service_account()
    config = _merged(_paths(kubeconfig, overrides))
    try:
        return _of_kubeconfig(config, overrides)
    except OSError as error:
        raise _unusable(error) from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # parts of other types than kubectl's
        raise _unusable(f"{config.name} is not a kubeconfig: {error}") from error


def service_account() -> Credentials:
    """Return the credentials of the pod. Raises ``NoCredentials`` outside of a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    if not host:
        raise _unusable("there is no service account: run inside a cluster, or name a kubeconfig")
    token, authority = SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"
    for path in (token, authority):
        if not path.is_file():
            raise _unusable(f"the service account has no file {path}")
    namespace = SERVICE_ACCOUNT / "namespace"
    return Credentials(
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        token_file(token),
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.is_file() else "default",
        ca_file=str(authority),
    )


def token_file(path: Path) -> Authorization:
    """Return the header for a token in a file, which is read again every minute."""

    def read() -> tuple[str, float]:
        token = path.read_text(encoding="utf-8").strip()
        # A file that is empty at the moment is being replaced.
        if not token:
            raise NoCredentials(f"the token file {path} is empty")
        return f"Bearer {token}", monotonic() + TOKEN_SECONDS

    return Authorization(read)


# Kubeconfigs


class Kubeconfig(MutableObject):
    """The merged entries of kubeconfigs, by name. Paths in entries are absolute."""

    name: str
    current: str = ""
    contexts: dict[str, Entry] = value_field(default_factory=dict)
    clusters: dict[str, Entry] = value_field(default_factory=dict)
    users: dict[str, Entry] = value_field(default_factory=dict)


def contexts_of(kubeconfig: Path | None = None) -> Kubeconfig:
    """Return the entries of the kubeconfigs that kubectl would use. Raises ``NoCredentials``."""
    return _merged(_paths(kubeconfig))


def _paths(kubeconfig: Path | None, overrides: Overrides = NO_OVERRIDES) -> list[Path]:
    """Return the given kubeconfig, or the existing files of ``KUBECONFIG``. Raises ``NoCredentials`` without any file."""
    text = str(kubeconfig) if kubeconfig is not None else os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    wanted = [name for name in text.split(os.pathsep) if name]
    found = [path for name in wanted if (path := Path(name).expanduser()).is_file()]
    if not found and not (kubeconfig is None and overrides.server):
        raise _unusable(f"there is no file {' or '.join(wanted)}")
    return found


def _merged(paths: list[Path]) -> Kubeconfig:
    """Merge files as kubectl does: of entries with the same name, and of current contexts, the first counts."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    merged = Kubeconfig(os.pathsep.join(map(str, paths)))
    for path in paths:
        try:
            found = yaml.load(path.read_text(encoding="utf-8"), loader)  # noqa: S506  (the safe loader in C)
        except OSError as error:
            raise _unusable(error) from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise _unusable(f"{path} is not a kubeconfig: {' '.join(str(error).split())}") from error
        if not isinstance(found, dict) or not any(key in found for key in ("clusters", "contexts", "users")):
            raise _unusable(f"{path} is not a kubeconfig: it has neither clusters nor contexts nor users")
        merged.current = merged.current or str(found.get("current-context") or "")
        for kind, into in (("context", merged.contexts), ("cluster", merged.clusters), ("user", merged.users)):
            for name, entry in _entries(path, found, kind):
                into.setdefault(name, _absolute(entry, path.parent))
    return merged


def _entries(path: Path, found: Entry, kind: str) -> Iterator[tuple[str, Entry]]:
    listed = found.get(f"{kind}s") or []
    for item in listed if isinstance(listed, list) else [None]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise _unusable(f"{path} is not a kubeconfig: {kind}s is not a list of entries with names")
        entry = item.get(kind) or {}
        if not isinstance(entry, dict):
            raise _unusable(f"{path} is not a kubeconfig: the {kind} {item['name']} is not an object")
        yield item["name"], entry


_FILES: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def _absolute(entry: Entry, folder: Path) -> Entry:
    """Return an entry with absolute paths. Relative paths refer to the folder of the kubeconfig."""
    files: dict[str, Any] = {key: str(folder / str(entry[key])) for key in _FILES if entry.get(key)}
    command = entry.get("exec")
    if isinstance(command, dict) and os.sep in str(command.get("command") or ""):
        files["exec"] = {**command, "command": str(folder / str(command["command"]))}
    return {**entry, **files}


def _of_kubeconfig(config: Kubeconfig, overrides: Overrides) -> Credentials:
    name = overrides.context or config.current
    context = _entry(config, "context", config.contexts, name, optional=not overrides.context)
    user_name = overrides.user or str(context.get("user") or "")
    user = _entry(config, "user", config.users, user_name, optional=not overrides.user)
    cluster_name = overrides.cluster or str(context.get("cluster") or "")
    cluster = _entry(config, "cluster", config.clusters, cluster_name, optional=bool(overrides.server))
    server = overrides.server or str(cluster.get("server") or "")
    if not server:
        raise _unusable(f"{config.name}: the cluster {cluster_name} has no server")
    found = Credentials(
        server,
        impersonation=_impersonation(user, overrides),
        namespace=str(context.get("namespace") or "default"),
        ca_data=_decoded(cluster, "certificate-authority-data"),
        ca_file=str(cluster.get("certificate-authority") or ""),
        verify=not (overrides.insecure or cluster.get("insecure-skip-tls-verify")),
        server_name=str(cluster.get("tls-server-name") or ""),
        proxy=str(cluster.get("proxy-url") or ""),
    )
    certificate, key = _pem(user, "client-certificate"), _pem(user, "client-key")
    if certificate and key:
        found.certificate = (certificate, key)
    _authenticate(found, user, cluster, config, overrides)
    return found


def _entry(config: Kubeconfig, kind: str, entries: Mapping[str, Entry], name: str, *, optional: bool) -> Entry:
    if name in entries:
        return entries[name]
    if optional and not name:
        return {}
    if not name:
        raise _unusable(f"{config.name} has no current context; name one by --context: {', '.join(config.contexts)}")
    raise _unusable(f"{config.name} has no {kind} {name}, only {', '.join(sorted(entries)) or 'none'}")


def _authenticate(found: Credentials, user: Entry, cluster: Entry, config: Kubeconfig, overrides: Overrides) -> None:
    """Set the header, in the order of client-go: a token, a token file, a password, then plugins."""
    if overrides.token:
        found.authorization = constant(f"Bearer {overrides.token}")
    elif user.get("tokenFile"):
        found.authorization = token_file(Path(user["tokenFile"]))
    elif user.get("token"):
        found.authorization = constant(f"Bearer {user['token']}")
    elif user.get("username") and "password" in user:
        text = base64.b64encode(f"{user['username']}:{user['password']}".encode()).decode()
        found.authorization = constant(f"Basic {text}")
    elif isinstance(user.get("exec"), dict):
        _use_plugin(found, user["exec"], cluster)
    elif user.get("auth-provider"):
        found.authorization = Authorization(lambda: _by_provider(config, user))


def _decoded(entry: Entry, key: str) -> str:
    try:
        return base64.b64decode(str(entry.get(key) or ""), validate=False).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise _unusable(f"{key} is not base64 of a PEM text: {error}") from error


def _pem(user: Entry, key: str) -> str:
    """Return a PEM text of a user, given as data or as a file, or an empty text."""
    if data := _decoded(user, f"{key}-data"):
        return data
    return Path(user[key]).read_text(encoding="utf-8") if user.get(key) else ""


# Impersonation


def _impersonation(user: Entry, overrides: Overrides) -> Headers:
    """Return the impersonation headers. Raises ``NoCredentials`` for groups, a uid or extras without a user."""
    if overrides.as_user or overrides.as_groups or overrides.as_uid:
        user = {"as": overrides.as_user, "as-groups": overrides.as_groups, "as-uid": overrides.as_uid}
    found = tuple(_headers(user))
    # The server rejects such requests with 403. This error names the cause instead.
    if found and found[0][0] != "Impersonate-User":
        raise _unusable("a uid, groups or extras are impersonated without a user (as)")
    return found


def _headers(user: Entry) -> Iterator[tuple[str, str]]:
    """Yield the impersonation headers, the user first."""
    if user.get("as"):
        yield "Impersonate-User", _text(user["as"])
    if user.get("as-uid"):
        yield "Impersonate-Uid", _text(user["as-uid"])
    for group in user.get("as-groups") or ():
        yield "Impersonate-Group", _text(group)
    for key, values in (user.get("as-user-extra") or {}).items():
        for value in values or ():
            # Header names are case-insensitive with a limited character set. Other characters are escaped as in
            # client-go.
            yield f"Impersonate-Extra-{quote(_text(key).lower(), safe='!#$&+^_`|~')}", _text(value)


def _text(value: object) -> str:
    # A line break would start another header.
    if not isinstance(value, str) or "\n" in value or "\r" in value:
        raise _unusable(f"{value!r} is not a name to impersonate")
    return value


# Plugins


def _use_plugin(found: Credentials, plugin: Entry, cluster: Entry) -> None:
    """
    Authenticate by a credential plugin (client-go ``plugin/pkg/client/auth/exec``).

    A client certificate of the plugin is part of the TLS context, so the plugin runs at once. A token is renewed when
    it expires.
    """
    first: list[Entry] = []

    def read() -> tuple[str, float]:
        status = first.pop() if first else _run_plugin(plugin, cluster, found)
        token = status.get("token")
        return (f"Bearer {token}" if token else ""), _until(status.get("expirationTimestamp"))

    status = _run_plugin(plugin, cluster, found)
    if status.get("clientCertificateData"):
        found.certificate = (str(status["clientCertificateData"]), str(status.get("clientKeyData") or ""))
    first.append(status)
    found.authorization = Authorization(read)


def _until(expiry: object) -> float:
    """Return the monotonic time shortly before the expiry of a token, or infinity without an expiry."""
    if not expiry:
        return float("inf")
    try:
        at = datetime.fromisoformat(str(expiry))
    except ValueError:
        raise _unusable(f"the credential plugin gives an expiry that is not a time: {expiry}") from None
    left = (at - datetime.now(UTC)).total_seconds()
    return monotonic() + max(1.0, left - EXPIRY_SECONDS)


def _run_plugin(plugin: Entry, cluster: Entry, found: Credentials) -> Entry:
    """Run a credential plugin and return the status of its answer. Raises ``NoCredentials``."""
    import subprocess

    command, version = str(plugin.get("command") or ""), str(plugin.get("apiVersion") or "")
    if not command or not version:
        raise _unusable("the credential plugin of the kubeconfig has no command or no apiVersion")
    mode = plugin.get("interactiveMode") or "IfAvailable"
    interactive = mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
    if mode == "Always" and not interactive:
        raise _unusable(f"the credential plugin {command} needs a terminal")
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = _cluster_info(cluster, found)
    variables = {str(it.get("name")): str(it.get("value")) for it in plugin.get("env") or () if isinstance(it, dict)}
    info = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": spec})
    try:
        done = subprocess.run(  # noqa: S603  (the user's own kubeconfig names the program, as for kubectl)
            [command, *map(str, plugin.get("args") or ())],
            env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": info},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=PLUGIN_SECONDS,
            check=True,
        )
        answer = json.loads(done.stdout)
    except FileNotFoundError as error:
        hint = str(plugin.get("installHint") or "").strip()
        raise _unusable(f"the credential plugin {command} is not installed{f': {hint}' if hint else ''}") from error
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise _unusable(f"the credential plugin {command} failed: {error}") from error
    status = answer.get("status") if isinstance(answer, dict) and answer.get("apiVersion") == version else None
    if not isinstance(status, dict) or not (status.get("token") or status.get("clientCertificateData")):
        raise _unusable(f"the credential plugin {command} gives no credentials in {version}")
    return status


def _cluster_info(cluster: Entry, found: Credentials) -> Entry:
    extensions = cluster.get("extensions") or ()
    own = next(
        (it.get("extension") for it in extensions if it.get("name") == "client.authentication.k8s.io/exec"), None
    )
    authority = found.ca_data or (Path(found.ca_file).read_text(encoding="utf-8") if found.ca_file else "")
    return {
        "server": found.server,
        "tls-server-name": found.server_name,
        "insecure-skip-tls-verify": not found.verify,
        "certificate-authority-data": base64.b64encode(authority.encode()).decode(),
        "proxy-url": found.proxy,
        "config": own,
    }


def _by_provider(config: Kubeconfig, user: Entry) -> tuple[str, float]:
    """Return the header for a user with an ``auth-provider``, such as OIDC, by kubernetes-asyncio."""
    import asyncio

    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import ConfigException, load_kube_config_from_dict

    loaded = Configuration()
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://localhost"}}],
        "users": [{"name": "u", "user": dict(user)}],
    }
    try:
        asyncio.run(load_kube_config_from_dict(document, client_configuration=loaded))
    except (ConfigException, OSError, AttributeError, LookupError, TypeError, ValueError, AssertionError) as error:
        raise _unusable(f"{config.name}: the auth-provider cannot be used: {error}") from error
    return str(loaded.api_key.get("BearerToken") or ""), monotonic() + TOKEN_SECONDS
