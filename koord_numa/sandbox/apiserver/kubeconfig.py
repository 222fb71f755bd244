"""The kubeconfig of a sandbox: plain HTTP on loopback, a token because some clients insist on credentials."""

from pathlib import Path

import yaml

from koord_numa.sandbox.apiserver.objects.documents import JsonObject

_NAME = "koord-numa-sandbox"


def kubeconfig(url: str, user: str = "") -> JsonObject:
    """A kubeconfig with one cluster, one user and one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _NAME, "cluster": {"server": url}}],
        "users": [{"name": _NAME, "user": {"token": f"sandbox:{user}" if user else "sandbox"}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": "default"}}],
        "current-context": _NAME,
    }


def write_kubeconfig(path: Path, url: str, user: str = "") -> Path:
    """Write it to a file that only the user can read; returns the path."""
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(kubeconfig(url, user), sort_keys=False), encoding="utf-8")
    return path
