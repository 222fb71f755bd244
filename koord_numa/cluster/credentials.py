"""Where the API server is and how to authenticate: a kubeconfig as kubectl reads it, or the service account of the pod we run in."""

import os
from pathlib import Path
from typing import Final

import yaml
from kubernetes_asyncio import config as credentials
from kubernetes_asyncio.client import Configuration

from koord_numa.cluster.impersonation import Headers, impersonation_headers

DEFAULT_KUBECONFIG: Final = "~/.kube/config"
"""Where kubectl looks when no kubeconfig is named."""


class NoCredentials(Exception):
    """There is neither a service account nor a usable kubeconfig."""


class ClientConfiguration(Configuration):
    """The library's configuration, and the headers of whom a kubeconfig impersonates."""

    impersonation: Headers = ()


async def load_configuration(kubeconfig: Path | None = None, context: str | None = None) -> ClientConfiguration:
    """
    The named kubeconfig; else the service account of the pod we run in; else what ``KUBECONFIG`` or ``~/.kube/config`` say.

    ``context`` names one of the kubeconfig, and is then looked for there also inside a pod.

    Raises ``NoCredentials``.
    """
    configuration = ClientConfiguration()
    try:
        # Without a service account of the pod the kubeconfig is looked for; a context is always one of a kubeconfig.
        if kubeconfig is None and context is None and _in_cluster():
            credentials.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # theirs
        else:
            files = _kubeconfigs(kubeconfig)
            # Before the library, whose own errors for foreign files are tracebacks.
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
    ) as error:  # what theirs makes of other files
        raise NoCredentials(f"no credentials for a cluster: {files} is no kubeconfig: {error}") from error
    return configuration


def current_namespace(kubeconfig: Path | None = None, context: str | None = None) -> str:
    """The namespace that a context names, ``default`` where it names none. Raises ``NoCredentials``."""
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
    # ``KUBECONFIG`` inside a pod is set on purpose: it wins over the service account.
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def _check_shape(files: str) -> None:
    """An empty or foreign file gets a sentence of its own; the library stumbles over it. Raises ``ConfigException``."""
    for name in files.split(os.pathsep):
        found = yaml.safe_load(Path(name).expanduser().read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not any(key in found for key in ("clusters", "contexts", "users")):
            raise credentials.ConfigException(
                f"{name} is no kubeconfig: it has neither clusters nor contexts nor users"
            )


def _kubeconfigs(named: Path | None) -> str:
    """The kubeconfig or, as kubectl, those in ``KUBECONFIG`` that exist. Raises ``NoCredentials`` when there is none."""
    text = str(named) if named is not None else os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    wanted = [name for name in text.split(os.pathsep) if name]
    found = [name for name in wanted if Path(name).expanduser().is_file()]
    if not found:
        raise NoCredentials(f"no credentials for a cluster: there is no file {' or '.join(wanted)}")
    return os.pathsep.join(found)
