"""
Log formats: text, or one JSON object per line.

Callers pass a pod, a node or a reason as ``extra={"pod": …, "node": …, "reason": …}``. Both formats include them.
"""

import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import orjson

from koord_numa.view.printable import printable

KEYS: Final = ("pod", "node", "reason")
"""Keys for log searches, in display order."""


class LogFormat(StrEnum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


class PrintableFormatter(logging.Formatter):
    """A formatter that removes terminal controls in texts of objects."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class TextFormatter(PrintableFormatter):
    """Text lines: ``time level logger message pod=… node=… reason=…``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self.default_msec_format = "%s.%03d"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the base class's name)
        line = super().formatMessage(record)
        return " ".join([line, *(f"{key}={value}" for key, value in _found(record).items())])


class JsonFormatter(logging.Formatter):
    """Lines with one JSON object each."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        } | _found(record)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


def configure_logging(level: str, form: LogFormat) -> None:
    """Send all log lines of the process to stderr in the given format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    # Replaces handlers of libraries, which would print every line twice.
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _found(record: logging.LogRecord) -> dict[str, str]:
    return {key: str(getattr(record, key)) for key in KEYS if getattr(record, key, None) not in (None, "")}
