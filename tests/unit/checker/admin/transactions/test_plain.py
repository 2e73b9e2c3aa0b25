"""What is read of transactions, as JSON."""

from __future__ import annotations

import json

from halfbridge.checker.admin.transactions import plain
from halfbridge.checker.admin.transactions.life import Event, Kind, Life, Payload, Verdict
from halfbridge.checker.admin.transactions.undecided import Listing, Stopped
from tests.kit.undecided import AN_UNDECIDED


def test_a_listing_has_the_fields_that_scripts_read() -> None:
    """What is not known is null; words are text."""
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
    """Kind, time and place are there always; payloads are base64, and null stays null."""
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
