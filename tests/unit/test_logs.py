"""Log lines for machines, and a level that changes while the process runs."""

import ast
import importlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from opentelemetry.trace import NonRecordingSpan, SpanContext, use_span

from halfbridge.cli import cli
from halfbridge.logs import (
    SHOWN_CHARS_MAX,
    JsonLines,
    LevelSwitch,
    about,
    bytes_text,
    keep_to_one_line,
    one_line,
)
from halfbridge.serde.records import DeadReason

LOG = logging.getLogger("halfbridge.checker")


@pytest.fixture
def root_level() -> Iterator[None]:
    """The level of the root logger, put back at the end."""
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


def record(text: str, *arguments: object, **fields: object) -> logging.LogRecord:
    """Return what a log call makes."""
    extra = about(**fields)
    return LOG.makeRecord(LOG.name, logging.WARNING, "", 0, text, arguments, None, extra=extra)


def test_an_event_is_one_line_with_stable_names() -> None:
    """Transaction and group are fields; enums are their values; time is UTC in milliseconds."""
    made = record(
        "transaction %s", "A", transaction_id="A", producer_group="g", reason=DeadReason.LATE
    )
    made.created = 1_700_000_000.25
    text = JsonLines("host-0").format(made)
    assert "\n" not in text
    assert json.loads(text) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "halfbridge.checker",
        "worker": "host-0",
        "message": "transaction A",
        "transaction_id": "A",
        "producer_group": "g",
        "reason": "LATE",
    }


def test_text_of_records_neither_breaks_a_line_nor_fills_it() -> None:
    """Whoever writes a record writes no fields and no lines, however long the id is."""
    line = JsonLines().format(record("x", transaction_id='A\n", "level": "error' + "a" * 9_999))
    reported = json.loads(line)
    assert reported["level"] == "warning"
    assert "\\n" in reported["transaction_id"]
    assert len(line) < 1_500


def test_a_traceback_is_in_the_line() -> None:
    """One event stays one line."""
    try:
        int("why")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    reported = json.loads(JsonLines().format(made))
    assert reported["traceback"].endswith("'why'")
    assert "worker" not in reported


@pytest.mark.usefixtures("root_level")
@pytest.mark.parametrize(
    ("configured", "levels"), [("error", ["DEBUG", "ERROR"]), ("debug", ["INFO", "DEBUG"])]
)
def test_the_level_is_switched_and_switched_back(configured: str, levels: list[str]) -> None:
    """To debug and back to what was configured; from a configured debug to info and back."""
    switch = LevelSwitch(configured)
    seen = []
    for _ in levels:
        switch.toggle()
        seen.append(logging.getLevelName(logging.getLogger().level))
    assert seen == levels


# --- text from records in log lines: one line, no control characters, and not without end --

ROOT = Path(__file__).resolve().parents[2]
FORGED = "A\n2026-11-23 06:00:00 ERROR halfbridge.checker all is lost"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders-1 é 名", "orders-1 é 名"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[31mred\x9b0m", r"\x1b[31mred\x9b0m"),
        ("a\u2028b\u202ec\udcff", r"a\u2028b\u202ec\udcff"),
        ("x" * SHOWN_CHARS_MAX, "x" * SHOWN_CHARS_MAX),
        ("x" * 620_000, "x" * SHOWN_CHARS_MAX + "... (620000 characters)"),
    ],
)
def test_text_is_shown_in_one_line(text: str, shown: str) -> None:
    """Letters of all languages stay; newlines, escape sequences and marks of direction do not."""
    assert one_line(text) == shown


def _loggers(package: str) -> set[str]:
    """Return the names of all loggers in a package's sources."""
    return {
        node.args[0].value
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "logging.getLogger"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }


@pytest.mark.parametrize("package", ["bridge", "checker"])
def test_no_record_forges_a_line(package: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is logged, by whichever logger of the package: ids, errors, lists, named ones."""
    importlib.import_module(package)
    names = _loggers(package)
    assert names
    for name in names:
        log = logging.getLogger(name)
        log.warning("%s, %r, %s, %s", FORGED, FORGED, ValueError(FORGED), [FORGED, "\x1b"])
        log.warning("%(id)s of %(count)d", {"id": FORGED, "count": 3})
    assert len(caplog.messages) == 2 * len(names)
    assert all(message.isprintable() for message in caplog.messages)
    assert caplog.messages[1].startswith(r"A\n2026-11-23 06:00:00 ERROR halfbridge.checker all is")


def test_numbers_are_formatted_as_before(caplog: pytest.LogCaptureFixture) -> None:
    """Also None, and a line without arguments; an argument whose text fails fails only its line."""

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    keep_to_one_line("halfbridge.test")
    log = logging.getLogger("halfbridge.test")
    log.warning("%d of %.1f, %s, %s", 3, 2.5, True, None)
    log.warning("100 %")
    logging.raiseExceptions, before = False, logging.raiseExceptions
    try:
        log.handlers, log.propagate = [logging.StreamHandler()], False
        log.warning("%s", Broken())
    finally:
        logging.raiseExceptions = before
        log.handlers, log.propagate = [], True
    assert caplog.messages == ["3 of 2.5, True, None", "100 %"]


def test_bytes_are_one_line_of_text() -> None:
    """UTF-8 as it is; other bytes and control characters escaped; nothing is not empty."""
    assert bytes_text("grün".encode()) == "grün"
    assert bytes_text(b"\xff\n") == "\\xff\\n"
    assert bytes_text(b"") == ""
    assert bytes_text(None) == "null"


def test_a_line_names_the_span_in_which_it_is_logged() -> None:
    """Trace and span, so that a line is found from a trace; outside a span neither is there."""
    context = SpanContext(0xABC, 0xDEF, is_remote=False)
    with use_span(NonRecordingSpan(context)):
        reported = json.loads(JsonLines().format(record("x")))
    assert reported["trace_id"] == f"{'abc':0>32}"
    assert reported["span_id"] == f"{'def':0>16}"
    assert "trace_id" not in json.loads(JsonLines().format(record("x")))


@pytest.mark.parametrize("command", [("dev",), ("web",), ("checker", "run"), ("relay", "run")])
def test_each_process_has_the_option_and_the_variable(command: tuple[str, ...]) -> None:
    """Daemon, page, relay and development stack take the format the same way."""
    shown = CliRunner().invoke(cli, [*command, "--help"]).output
    assert "--log-format" in shown
    assert "HALFBRIDGE_LOG_FORMAT" in shown
