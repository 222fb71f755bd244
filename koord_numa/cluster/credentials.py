"""Credentials and address of the API server: a kubeconfig as kubectl reads it, or the service account of the pod."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import yaml
from kubernetes_asyncio import config as credentials
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException
from kubernetes_asyncio.config.kube_config import KubeConfigMerger

Headers: TypeAlias = tuple[tuple[str, str], ...]
"""HTTP headers as pairs. A name may occur several times."""


def impersonation_headers(files: str, context: str | None = None) -> Headers:
    """Return the impersonation headers of a context's user.

    Empty without impersonation. ``files`` are paths as in ``KUBECONFIG``.

    Raises ``ConfigException`` for groups, a uid or extras without a user, and for values that are not strings.
    """
    merged = KubeConfigMerger(files).config
    config: Mapping[str, Any] = {} if merged is None else merged.value
    # Without a name the current context is used, as for the credentials.
    name = context or config.get("current-context")
    chosen = _named(config.get("contexts"), name).get("context") or {}
    user = _named(config.get("users"), chosen.get("user")).get("user") or {}
    found = tuple(_headers(user))
    # The server rejects such requests with 403. This error names the kubeconfig instead.
    if found and found[0][0] != "Impersonate-User":
        raise ConfigException("a uid, groups or extras are impersonated without a user (as)")
    return found


def _headers(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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


def _named(entries: object, name: object) -> Mapping[str, Any]:
    found = (_plain(entry) for entry in entries) if isinstance(entries, Sequence) else iter(())
    return next((entry for entry in found if entry.get("name") == name), {})


def _plain(entry: Any) -> Mapping[str, Any]:
    """Return an entry without the wrapper of the merger."""
    value = getattr(entry, "value", entry)
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    # A line break would start another header.
    if not isinstance(value, str) or "\n" in value or "\r" in value:
        raise ConfigException(f"{value!r} is no name to impersonate")
    return value


DEFAULT_KUBECONFIG: Final = "~/.kube/config"
"""Default path of kubectl."""


class NoCredentials(Exception):
    """There is neither a service account nor a usable kubeconfig."""


class ClientConfiguration(Configuration):
    """The configuration of the library with the impersonation headers of a kubeconfig."""

    impersonation: Headers = ()


async def load_configuration(kubeconfig: Path | None = None, context: str | None = None) -> ClientConfiguration:
    """Load the credentials of the API server.

    In this order: the given kubeconfig, the pod's service account, the files in ``KUBECONFIG`` or ``~/.kube/config``.
    With ``context`` a kubeconfig is used also inside a pod. Raises ``NoCredentials``.
    """
    configuration = ClientConfiguration()
    try:
        # A context always refers to a kubeconfig, even inside a pod.
        if kubeconfig is None and context is None and _in_cluster():
            credentials.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # theirs
        else:
            files = _kubeconfigs(kubeconfig)
            # Checked first, because the library fails on other files with unrelated exceptions.
            _check_shape(files)
            await credentials.load_kube_config(config_file=files, context=context, client_configuration=configuration)
            configuration.impersonation = impersonation_headers(files, context)
    except (credentials.ConfigException, OSError) as error:
        raise NoCredentials(f"no credentials for a cluster: {error}") from error
    except (
        yaml.YAMLError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:  # exceptions of the library for other files
        raise NoCredentials(f"no credentials for a cluster: {files} is no kubeconfig: {error}") from error
    return configuration


def current_namespace(kubeconfig: Path | None = None, context: str | None = None) -> str:
    """Return the namespace of a context, by default ``default``. Raises ``NoCredentials``."""
    if kubeconfig is None and context is None and _in_cluster():
        return "default"
    files = _kubeconfigs(kubeconfig)
    try:
        _check_shape(files)
        contexts, active = credentials.list_kube_config_contexts(config_file=files)
    except (
        credentials.ConfigException,
        OSError,
        yaml.YAMLError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise NoCredentials(f"no credentials for a cluster: {files} is no kubeconfig: {error}") from error
    chosen = next((each for each in contexts if each["name"] == context), None) if context else active
    if chosen is None:
        names = ", ".join(sorted(each["name"] for each in contexts))
        raise NoCredentials(f"no credentials for a cluster: {files} has no context {context}, only {names or 'none'}")
    return str((chosen.get("context") or {}).get("namespace") or "default")


def _in_cluster() -> bool:
    # ``KUBECONFIG`` inside a pod is set deliberately and takes precedence over the service account.
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def _check_shape(files: str) -> None:
    """Raise ``ConfigException`` for files that are not a kubeconfig, which the library does not report clearly."""
    for name in files.split(os.pathsep):
        found = yaml.safe_load(Path(name).expanduser().read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not any(key in found for key in ("clusters", "contexts", "users")):
            raise credentials.ConfigException(
                f"{name} is no kubeconfig: it has neither clusters nor contexts nor users"
            )


def _kubeconfigs(named: Path | None) -> str:
    """Return the given kubeconfig, or the existing files of ``KUBECONFIG`` as in kubectl.

    Raises ``NoCredentials`` if there is none.
    """
    text = str(named) if named is not None else os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    wanted = [name for name in text.split(os.pathsep) if name]
    found = [name for name in wanted if Path(name).expanduser().is_file()]
    if not found:
        raise NoCredentials(f"no credentials for a cluster: there is no file {' or '.join(wanted)}")
    return os.pathsep.join(found)
