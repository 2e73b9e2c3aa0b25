"""Log lines for machines, and a level that changes while the process runs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from halfbridge.logs import JsonLines, LevelSwitch, about
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
    told = json.loads(line)
    assert told["level"] == "warning"
    assert "\\n" in told["transaction_id"]
    assert len(line) < 1_500


def test_a_traceback_stands_in_the_line() -> None:
    """One event stays one line."""
    try:
        int("why")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    told = json.loads(JsonLines().format(made))
    assert told["traceback"].endswith("'why'")
    assert "worker" not in told


@pytest.mark.usefixtures("root_level")
@pytest.mark.parametrize(
    ("configured", "levels"),
    [("error", ["DEBUG", "ERROR"]), ("debug", ["INFO", "DEBUG"])],
)
def test_the_level_is_switched_and_switched_back(configured: str, levels: list[str]) -> None:
    """To debug and back to what was configured; from a configured debug to info and back."""
    switch = LevelSwitch(configured)
    seen = []
    for _ in levels:
        switch.toggle()
        seen.append(logging.getLevelName(logging.getLogger().level))
    assert seen == levels
