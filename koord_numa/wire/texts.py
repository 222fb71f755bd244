"""Texts as Kubernetes wants them: RFC 3339 times and messages of bounded length."""

from datetime import datetime


def rfc3339(moment: datetime) -> str:
    """A ``metav1.Time``: UTC, whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """A ``metav1.MicroTime``: UTC, microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shortened(text: str, limit: int) -> str:
    """The text, or as much of its beginning as fits into ``limit`` bytes of UTF-8 together with an ellipsis."""
    raw = text.encode()
    # Cut on bytes, and a character that was cut in half is dropped.
    return text if len(raw) <= limit else raw[: limit - 3].decode("utf-8", "ignore") + "..."
