"""Logs: text on a terminal, else one JSON line per event. Payloads and secrets are never logged."""

import json
import logging
from typing import Any

from penstock.operations.answers import rfc3339
from penstock.server.settings import ServerSettings


class JsonLines(logging.Formatter):
    """A record as one line of JSON. `extra={"fields": {…}}` gives it fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """A record as a line of text: the event, then its fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(
            f" {name}={json.dumps(value, default=str)}"
            for name, value in getattr(record, "fields", {}).items()
        )
        # Escaped, so that input of a caller cannot forge a line or control a terminal.
        event = json.dumps(record.getMessage(), ensure_ascii=False)[1:-1]
        line = f"{_at(record)} {record.levelname:7} {event}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _at(record: logging.LogRecord) -> str:
    return rfc3339(round(record.created * 1e6) * 1000)


def set_up_logs(settings: ServerSettings) -> None:
    """Write the logs of Penstock to stderr, in the configured format."""
    handler = logging.StreamHandler()
    is_text = settings.log_format == "text" or (
        settings.log_format == "auto" and handler.stream.isatty()
    )
    handler.setFormatter(TextLines() if is_text else JsonLines())
    logger = logging.getLogger("penstock")
    logger.handlers[:] = [handler]
    logger.propagate = False
    set_level(settings)


def set_level(settings: ServerSettings) -> None:
    logging.getLogger("penstock").setLevel(settings.log_level.upper())
