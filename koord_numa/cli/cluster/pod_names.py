"""Names of pods as people give them: ``web-1``, ``pod/web-1``, or ``default/web-1`` as our tables print them."""

from typing import Final

import click

PREFIXES: Final = ("pod", "pods", "po")


def pod_name(text: str, namespace: str | None, default: str) -> tuple[str, str]:
    """Namespace and name. Raises ``click.BadParameter`` when ``-n`` says another namespace than the name does."""
    before, slash, name = text.rpartition("/")
    if not slash or before in PREFIXES:
        return namespace or default, name
    if namespace not in (None, before):
        raise click.BadParameter(f"{text} is in namespace {before}, not in {namespace}")
    return before, name
