"""What is said of a transaction in sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfbridge.checker.admin.transactions.explain import explain, span_text, time_text
from halfbridge.checker.admin.transactions.life import NOT_FOUND, Event, Kind, Life, Verdict
from halfbridge.checker.admin.transactions.waits import Wait
from tests.unit.checker.admin.transactions.test_plain import AN_UNDECIDED

NOW = 1_700_000_000_000
HALF = Event(
    kind=Kind.HALF,
    at_ms=NOW - 60_000,
    topic="half",
    partition=1,
    offset=7,
    message_index=0,
    real_topic="orders",
)
WON = Event(
    kind=Kind.DECISION,
    at_ms=NOW - 50_000,
    topic="op",
    partition=1,
    offset=8,
    op="COMMIT",
    source="PRODUCER",
    actor="me",
    verdict=Verdict.WON,
)
LIFE = Life(
    id="id",
    state="COMMITTED",
    producer_group="group",
    partition=1,
    events=(HALF, WON),
    decided_by=WON,
    is_applied=True,
    at_ms=NOW,
)


@pytest.mark.parametrize("wait", list(Wait))
def test_each_reason_says_what_comes_next_and_what_can_be_done(wait: Wait) -> None:
    """With what a worker does next, and the commands that decide by hand."""
    found = AN_UNDECIDED._replace(wait=wait, why="of a reason", next_check_at_ms=NOW + 90_000)
    life = replace(LIFE, state="PREPARED", decided_by=None, events=(HALF,), undecided=found)
    told = explain(life)
    text = " ".join(told)
    assert told[0].startswith("Transaction id (producer group group, pair 1) is PREPARED")
    assert f"It waits because of a reason ({wait.value})." in told
    assert "Its next check is due in 1m30s" in text
    assert "halfbridge tx rollback id --reason TEXT" in text
    assert f"halfbridge tx commit id --messages {found.messages} --reason TEXT" in text


def test_a_decision_and_its_delivery_are_told() -> None:
    """Who decided, why that decision counts, and where the message stands."""
    real = Event(
        kind=Kind.DELIVERY, at_ms=NOW, topic="orders", partition=2, offset=9, message_index=0
    )
    text = " ".join(explain(replace(LIFE, events=(HALF, WON, real))))
    assert "the COMMIT of PRODUCER me" in text
    assert "the first decision in op order wins" in text
    assert "Message 0 was delivered to orders[2] at offset 9" in text


def test_dead_letters_and_losers_are_told() -> None:
    """With the command that brings them back, by how the transaction ended."""
    letter = Event(
        kind=Kind.DEAD_LETTER,
        at_ms=NOW,
        topic="dead",
        partition=0,
        offset=3,
        reason="INCOMPLETE",
        why="of 2 messages 1 is there",
    )
    lost = replace(WON, offset=9, op="ROLLBACK", verdict=Verdict.CONFLICT, why="it contradicts")
    text = " ".join(explain(replace(LIFE, events=(HALF, WON, letter, lost))))
    assert "for INCOMPLETE: of 2 messages 1 is there" in text
    assert "halfbridge dead redeliver id" in text
    assert "The ROLLBACK of PRODUCER me" in text
    assert "changed nothing: it contradicts." in text
    discarded = replace(LIFE, state="DISCARDED", events=(HALF, WON, letter))
    assert "halfbridge dead resume id" in " ".join(explain(discarded))


def test_records_of_an_earlier_life_are_not_counted() -> None:
    """What was redelivered once has no more messages than before, and no dead letter is left."""
    letter = Event(kind=Kind.DEAD_LETTER, at_ms=NOW, topic="dead", partition=0, offset=3)
    lives = [replace(each, resume_count=0) for each in (HALF, letter)]
    events = (*lives, replace(HALF, offset=11, resume_count=1), WON)
    text = " ".join(explain(replace(LIFE, resume_count=1, events=events)))
    assert "it has 1 half message for orders" in text
    assert "half offset 11" in text
    assert "dead letters" not in text


def test_what_is_not_found_or_not_applied_is_said() -> None:
    """With the range of time that was read."""
    life = Life(id="id", state=NOT_FOUND, read_from_ms=NOW, at_ms=NOW)
    assert "from 2023-11-14T22:13:20.000Z to the end of the logs" in explain(life)[0]
    waits = replace(LIFE, is_applied=False, notes=("its pair is stopped",))
    assert "A worker delivers it" in " ".join(explain(waits))
    assert explain(waits)[-1] == "Its pair is stopped."


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (None, "-"),
        (0, "0ms"),
        (999, "999ms"),
        (90_000, "1m30s"),
        (3_600_000, "1h0m"),
        (200_000_000, "2d7h"),
    ],
)
def test_spans_have_two_units(span_ms: int | None, text: str) -> None:
    """The two largest ones."""
    assert span_text(span_ms) == text


def test_a_strangers_time_is_shown_as_a_number() -> None:
    """A time after the year 9999 is none that calendars have."""
    assert time_text(1 << 62) == f"{1 << 62} ms"
    assert time_text(None) == "-"
