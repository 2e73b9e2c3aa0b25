"""How a process logs: text for people, or one JSON object a line for machines; and its level.

Field names of JSON lines are stable. Every line has `time` (ISO 8601, UTC), `level`, `logger` and
`message`; a line of a worker has `worker`, a line with a traceback has `traceback`. What a line is
about is in fields of its own (`about`), such as `transaction_id` and `producer_group`. A line
that is logged in a span of OpenTelemetry has its `trace_id` and `span_id`; a line of the daemon
about one message has the `trace_id` that the message's headers name. Text from records is escaped,
so that the writer of a record cannot forge log lines.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
_FIELDS = "halfbridge_fields"
_log = logging.getLogger("halfbridge.bridge")


def about(**fields: object) -> dict[str, object]:
    """Return the `extra` of a log call: fields of a JSON line, in one line and cut as arguments."""
    return {_FIELDS: fields}


class JsonLines(logging.Formatter):
    """Formats a log record as one JSON object in one line; an empty `worker` is left out."""

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if self._worker:
            line["worker"] = self._worker
        line["message"] = record.getMessage()
        fields = getattr(record, _FIELDS, {})
        line.update({name: _plain(value) for name, value in fields.items()})
        line.update(_trace())
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _trace() -> dict[str, str]:
    """Return trace and span of the running code; nothing where OpenTelemetry is not loaded."""
    opentelemetry = sys.modules.get("opentelemetry.trace")
    if opentelemetry is None:
        return {}
    context = opentelemetry.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


def log_to_stderr(level: str, log_format: str, *, worker: str = "") -> None:
    """Have this process log to standard error, in one of LOG_FORMATS; `worker` is in each line."""
    name = f" [{worker}]" if worker else ""
    text = logging.Formatter(f"%(asctime)s %(levelname)s{name} %(name)s: %(message)s")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(worker) if log_format == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])


class LevelSwitch:
    """Changes the level of this process while it runs: debug, and back to what was configured."""

    def __init__(self, configured: str) -> None:
        self._configured = configured
        self.is_debug = configured == "debug"

    def toggle(self) -> None:
        """Switch to debug, or back; from a configured debug to info, and back."""
        self.set(is_debug=not self.is_debug)

    def set(self, *, is_debug: bool) -> None:
        """Switch to debug, or to the configured level (info where that is debug)."""
        self.is_debug = is_debug
        usual = "info" if self._configured == "debug" else self._configured
        level = "debug" if is_debug else usual
        # As a warning: a line below the new level would not be seen.
        _log.warning("log level is %s from now on", level)
        logging.getLogger().setLevel(level.upper())


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return one_line(str(value))


# Longest text of one argument, in characters. Error texts of clients and brokers are shorter. Ids,
# groups and topics (250 characters) are shown whole.
SHOWN_CHARS_MAX = 1_000


def one_line(text: str) -> str:
    r"""Return `text` as it may be in a line of a log.

    Characters that cannot be printed are escaped (a newline as \n, a byte that is no UTF-8 as
    \udcff). A text longer than SHOWN_CHARS_MAX is cut, with a note.
    """
    cut = text[:SHOWN_CHARS_MAX]
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else repr(each)[1:-1] for each in cut)
    return cut if len(text) <= SHOWN_CHARS_MAX else f"{cut}... ({len(text)} characters)"


def bytes_text(data: bytes | None) -> str:
    """Return bytes as UTF-8, escaped where they are none; `null` where there are none."""
    return "null" if data is None else one_line(data.decode("utf-8", "backslashreplace"))


class _Shown:
    """An argument of a log line; it is formatted in one line when the log line is formatted."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return one_line(str(self._value))

    def __repr__(self) -> str:
        return one_line(repr(self._value))


class _OneLine(logging.Filter):
    """Makes all arguments of a log record be formatted in one line; lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args  # a mapping, where the line names what it shows
        if isinstance(arguments, Mapping):
            record.args = {name: _shown(value) for name, value in arguments.items()}
        elif arguments:
            record.args = tuple(map(_shown, arguments))
        return True


_ONE_LINE = _OneLine()


def keep_to_one_line(*loggers: str) -> None:
    """Make these loggers' lines hold their arguments, but not tracebacks, in one line each."""
    for name in loggers:
        logging.getLogger(name).addFilter(_ONE_LINE)


def _shown(value: object) -> object:
    if isinstance(value, str):
        return one_line(value)
    return value if value is None or isinstance(value, (int, float)) else _Shown(value)
