"""
Kopf storages that store nothing: on other people's objects a scheduler leaves no annotation, finalizer or status of a framework.

Kopf computes a diff-base for every event, even when nobody asks for changes; doing nothing here halves the cost of an event.
"""

# ruff: noqa: ARG002  (Kopf's signatures)
from typing import Any

import kopf


class NoDiffs(kopf.DiffBaseStorage):
    """Remembers no last-seen state."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        """Nothing about an object is essential to Kopf."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Nothing was stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Stores nothing."""


class NoProgress(kopf.ProgressStorage):
    """Remembers no progress of handlers: ours only hand over and are done."""

    def fetch(self, *, key: str, body: kopf.Body) -> kopf.ProgressRecord | None:
        """Nothing was stored."""
        return None

    def store(self, *, key: str, record: kopf.ProgressRecord, body: kopf.Body, patch: kopf.Patch) -> None:
        """Stores nothing."""

    def purge(self, *, key: str, body: kopf.Body, patch: kopf.Patch) -> None:
        """Nothing to purge."""

    def touch(self, *, body: kopf.Body, patch: kopf.Patch, value: Any) -> None:
        """Leaves no trace."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Nothing to clear."""
        return essence
