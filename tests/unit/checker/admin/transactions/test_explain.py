"""The sentences of `tx explain`, and the JSON of transactions."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from halfbridge.checker.admin.transactions import asked, look_up, plain, undecided
from halfbridge.checker.admin.transactions.explain import explain, span_text, time_text
from halfbridge.checker.admin.transactions.life import (
    NOT_FOUND,
    Event,
    Kind,
    Life,
    Payload,
    Verdict,
)
from halfbridge.checker.admin.transactions.undecided import Listing, Stopped
from halfbridge.checker.admin.transactions.waits import DeliveryWait, Wait
from halfbridge.checker.errors import AdminRequestError
from halfbridge.serde.records import OpKind, OpSource
from halfbridge.testkit.memory import MemoryStack
from tests.kit.undecided import AN_UNDECIDED
from tests.unit.checker.admin.transactions.scene import GROUP, TOPIC, Operator, sent, unknown

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
    """Each wait has its reason, the next check, and the commands that decide by hand."""
    found = AN_UNDECIDED._replace(wait=wait, why="of a reason", next_check_at_ms=NOW + 90_000)
    life = replace(LIFE, state="PREPARED", decided_by=None, events=(HALF,), undecided=found)
    reported = explain(life)
    text = " ".join(reported)
    assert reported[0].startswith("Transaction id (producer group group, pair 1) is PREPARED")
    assert f"It waits because of a reason ({wait.value})." in reported
    assert "Its next check is due in 1m30s" in text
    assert "halfbridge tx rollback id --reason TEXT" in text
    assert f"halfbridge tx commit id --messages {found.messages} --reason TEXT" in text


def test_a_decision_and_its_delivery_are_reported() -> None:
    """The text has who decided, why that decision counts, and where the message is delivered."""
    real = Event(
        kind=Kind.DELIVERY, at_ms=NOW, topic="orders", partition=2, offset=9, message_index=0
    )
    text = " ".join(explain(replace(LIFE, events=(HALF, WON, real))))
    assert "the COMMIT of PRODUCER me" in text
    assert "the first decision in op order wins" in text
    assert "Message 0 was delivered to orders[2] at offset 9" in text


def test_dead_letters_and_losers_are_reported() -> None:
    """The text has dead letters with the command that fits the decision, and each losing op."""
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
    """Halves and dead letters of an earlier life are left out of the text."""
    letter = Event(kind=Kind.DEAD_LETTER, at_ms=NOW, topic="dead", partition=0, offset=3)
    lives = [replace(each, resume_count=0) for each in (HALF, letter)]
    events = (*lives, replace(HALF, offset=11, resume_count=1), WON)
    text = " ".join(explain(replace(LIFE, resume_count=1, events=events)))
    assert "it has 1 half message for orders" in text
    assert "half offset 11" in text
    assert "dead letters" not in text


def test_the_explanation_names_records_not_found_and_not_applied() -> None:
    """NOT_FOUND has the range of time that was read; a decision not applied yet has the reason."""
    life = Life(id="id", state=NOT_FOUND, read_from_ms=NOW, at_ms=NOW)
    assert "from 2023-11-14T22:13:20.000Z to the end of the logs" in explain(life)[0]
    waits = replace(
        LIFE,
        is_applied=False,
        delivery_wait=DeliveryWait.OPS_BEFORE,
        notes=("its pair is stopped",),
    )
    assert "A worker applies it after the ops before it" in " ".join(explain(waits))
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
    """A span is shown in its two largest units."""
    assert span_text(span_ms) == text


def test_a_strangers_time_is_shown_as_a_number() -> None:
    """A time after the year 9999 is shown in ms."""
    assert time_text(1 << 62) == f"{1 << 62} ms"
    assert time_text(None) == "-"


# --- transactions as JSON ------------------------------------------------------------------


def test_a_listing_has_the_fields_that_scripts_read() -> None:
    """Unknown values are null; enum values are their names."""
    found = Listing(
        transactions=(AN_UNDECIDED,), undecided=7, stopped=(Stopped(1, "gone"),), at_ms=9
    )
    body = json.loads(json.dumps(plain.listing(found)))
    (only,) = body["transactions"]
    wanted = {
        *("id", "producer_group", "state", "age_ms", "checks_asked", "checks_answered"),
        *("messages", "bytes", "real_topic", "partition", "next_check_at_ms", "offset"),
        *("wait", "why"),
    }
    assert wanted <= only.keys()
    assert (only["wait"], only["checks_asked"], only["partition"]) == ("NOT_DUE", None, 3)
    assert (body["undecided"], body["stopped"], body["at_ms"]) == (
        7,
        [{"partition": 1, "why": "gone"}],
        9,
    )


def test_a_life_has_its_events_with_what_each_kind_knows() -> None:
    """Kind, time and place are always present; payloads are base64, and null stays null."""
    half = Event(
        kind=Kind.HALF,
        at_ms=None,
        topic="half",
        partition=0,
        offset=1,
        message_index=0,
        payload=Payload(None, b"\xff", (("name", None),)),
    )
    op = Event(kind=Kind.DECISION, at_ms=2, topic="op", partition=0, offset=1, verdict=Verdict.WON)
    body = json.loads(
        json.dumps(
            plain.life(
                Life(id="id", state="COMMITTED", events=(half, op), decided_by=op, notes=("note",))
            )
        )
    )
    assert body["events"] == [
        {
            "kind": "half",
            "at_ms": None,
            "topic": "half",
            "partition": 0,
            "offset": 1,
            "message_index": 0,
            "payload": {"key": None, "value": "/w==", "headers": [["name", None]]},
        },
        {
            "kind": "decision",
            "at_ms": 2,
            "topic": "op",
            "partition": 0,
            "offset": 1,
            "verdict": "WON",
        },
    ]
    assert (body["id"], body["state"], body["decided_by"]["verdict"]) == ("id", "COMMITTED", "WON")
    assert (body["undecided"], body["notes"]) == (None, ["note"])


# --- limits on reads of undecided transactions ---------------------------------------------


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic(TOPIC)
        yield started


def test_too_many_records_are_refused_with_a_way_out(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names --partition; one pair alone may be below the limit."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        pair = 1 - (operator.shown(sent(producer, b"one").id).partition or 0)
        for _ in range(20):
            sent(producer, b"more")
        monkeypatch.setattr(undecided, "RECORDS_MAX", 10)
        with pytest.raises(AdminRequestError, match="--partition"):
            operator.listed()
        assert operator.listed(partitions=(pair,)).undecided == 0


def test_too_much_memory_is_refused(stack: MemoryStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names in half records exceed the memory limit, and the listing is refused."""
    operator = Operator(stack)
    for number in range(20):
        operator.write_half(f"{number}" * 500, 0, producer_group="g" * 500)
    monkeypatch.setattr(undecided, "ENTRIES_BYTES_MAX", 50_000)
    with pytest.raises(AdminRequestError, match="memory"):
        operator.listed()


def test_decided_transactions_take_no_memory(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a daemon, decided transactions do not count against the memory limit."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        stack.daemon.kill()
        open_ = sent(producer, b"open")
        for _ in range(50):
            sent(producer, b"done").commit()
            stack.advance(seconds=1)
        monkeypatch.setattr(undecided, "ENTRIES_BYTES_MAX", 60_000)
        (only,) = operator.listed().transactions
    assert only.id == open_.id


def test_requests_beyond_the_limit_are_left_out(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests beyond REQUESTS_MAX do not change the list and its answered checks."""
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        for _ in range(20):
            sent(producer, b"one")
        stack.advance(seconds=8)
        whole = sum(each.checks_asked or 0 for each in operator.listed().transactions)
        answered = [each.checks_answered for each in operator.listed().transactions]
        monkeypatch.setattr(asked, "REQUESTS_MAX", 4)
        fewer = operator.listed().transactions
    assert whole == sum(answered) == 20
    assert [each.checks_answered for each in fewer] == answered


def test_a_flood_of_ops_about_one_id_is_cut(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 21 ops about one transaction the first five are kept; the first one decides."""
    monkeypatch.setattr(look_up, "RECORDS_KEPT_MAX", 5)
    operator = Operator(stack)
    with stack.producer(GROUP, checker=unknown) as producer:
        tx = sent(producer, b"one")
        tx.commit()
        stack.read_committed(TOPIC, count=1)
        pair = operator.shown(tx.id).partition or 0
        for _ in range(20):
            operator.write_op(OpKind.ROLLBACK, tx.id, pair, source=OpSource.CHECK)
        life = operator.shown(tx.id)
    assert life.state == "COMMITTED"
    assert len([each for each in life.events if each.op]) == 5
