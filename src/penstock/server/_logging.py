"""Logs as lines of JSON, with fields that cannot hold a secret."""

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any

from penstock.errors import PenstockError

LOGGER = logging.getLogger("penstock.server")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, event, and the fields of the record.

    Messages of Penstock's own errors contain no secrets. Of any other exception only its class and the places in the
    code are logged: its message may contain parameters of SQL or the text of a request.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = exception_fields(record.exc_info[1])
        return json.dumps(line, default=str)


def exception_fields(error: BaseException) -> dict[str, Any]:
    """The class of an exception, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "type": type(error).__name__,
        **({"reason": str(error)} if isinstance(error, PenstockError) else {}),
        "trace": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }


def log_settings() -> dict[str, Any]:
    """The settings of `logging` for the server and for uvicorn, whose lines of access are replaced by ours."""
    logger = {"handlers": ["stderr"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonFormatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
        "loggers": {"penstock": logger, "uvicorn": logger, "uvicorn.access": {"handlers": [], "propagate": False}},
    }
