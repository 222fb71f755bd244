"""
Impersonation by a kubeconfig (``as``, ``as-uid``, ``as-groups``, ``as-user-extra`` of a user), as client-go sends it.

kubernetes-asyncio ignores these fields, so that requests would be sent with the full rights of the credentials.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

from kubernetes_asyncio.config import ConfigException
from kubernetes_asyncio.config.kube_config import KubeConfigMerger

Headers: TypeAlias = tuple[tuple[str, str], ...]
"""HTTP headers as pairs: one name may come several times."""


def impersonation_headers(files: str, context: str | None = None) -> Headers:
    """
    The headers that a context's user demands; none where it impersonates no user. ``files`` are paths as in ``KUBECONFIG``.

    Raises ``ConfigException`` for groups, a uid or extras without a user, and for values that are no text.
    """
    merged = KubeConfigMerger(files).config
    config: Mapping[str, Any] = {} if merged is None else merged.value
    # A context that is not named is the current one, as for the credentials.
    name = context or config.get("current-context")
    chosen = _named(config.get("contexts"), name).get("context") or {}
    user = _named(config.get("users"), chosen.get("user")).get("user") or {}
    found = tuple(_headers(user))
    # The server refuses such requests; said here, it names the kubeconfig and not a 403.
    if found and found[0][0] != "Impersonate-User":
        raise ConfigException("a uid, groups or extras are impersonated without a user (as)")
    return found


def _headers(user: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The user first."""
    if user.get("as"):
        yield "Impersonate-User", _text(user["as"])
    if user.get("as-uid"):
        yield "Impersonate-Uid", _text(user["as-uid"])
    for group in user.get("as-groups") or ():
        yield "Impersonate-Group", _text(group)
    for key, values in (user.get("as-user-extra") or {}).items():
        for value in values or ():
            # Header names know no case and few characters: client-go escapes what they cannot carry.
            yield f"Impersonate-Extra-{quote(_text(key).lower(), safe='!#$&+^_`|~')}", _text(value)


def _named(entries: object, name: object) -> Mapping[str, Any]:
    found = (_plain(entry) for entry in entries) if isinstance(entries, Sequence) else iter(())
    return next((entry for entry in found if entry.get("name") == name), {})


def _plain(entry: Any) -> Mapping[str, Any]:
    """An entry that the merger may have wrapped."""
    value = getattr(entry, "value", entry)
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    # A line break would begin another header.
    if not isinstance(value, str) or "\n" in value or "\r" in value:
        raise ConfigException(f"{value!r} is no name to impersonate")
    return value
