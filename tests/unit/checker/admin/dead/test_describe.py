"""Messages from a file: what `exported` writes is read, and all else is refused in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from halfbridge.checker.admin.dead.describe import exported, given
from halfbridge.checker.admin.dead.letters import (
    Body,
    DeadTransaction,
    ExaminedLetter,
    Key,
    Letter,
    LetterPlace,
    Standing,
)
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import HALF
from tests.kit.records import A_HALF, A_LETTER

BODY = Body(b"\xff", None, [("h", b"\x00"), ("none", None), (HALF, b"x")])


def line(**changes: Any) -> str:
    """Return a line as it is exported, but for some fields."""
    letter = Letter(LetterPlace(0, 7), 1, A_LETTER, A_HALF, "", 1)
    transaction = DeadTransaction(Key(A_HALF.transaction_id, 0, "orders", 0), (letter,), {})
    told = exported(transaction, ExaminedLetter(letter, Standing.PROVEN, BODY, None))
    return json.dumps({**told, **changes})


def test_a_line_comes_back_byte_for_byte() -> None:
    """Key, value and the user's headers; null and empty stay different."""
    identity, message = given(line(value=""))
    assert identity == (A_HALF.transaction_id, 0)
    assert (message.real_topic, message.real_partition) == ("real", -1)
    assert message.body == Body(b"\xff", b"", [("h", b"\x00"), ("none", None)])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"key": "no base64!"}, "not as `dead export` writes it"),
        ({"headers": [["RMQ_HALF", None]]}, "reserved name"),
        ({"headers": 3}, "not as `dead export` writes it"),
        ({"message_index": 1_000}, "message_index"),
        ({"message_index": True}, "message_index"),
        ({"transaction_id": ""}, "transaction_id"),
        ({"real_topic": "x" * 250}, "real_topic"),
        ({"real_partition": -2}, "real_partition"),
    ],
)
def test_what_cannot_be_written_is_refused(changes: dict[str, Any], text: str) -> None:
    """Before anything is written to Kafka."""
    with pytest.raises(DecodeError, match=text):
        given(line(**changes))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "\ud800"])
def test_no_message_at_all(text: str) -> None:
    """Neither JSON nor an object of this form."""
    with pytest.raises(DecodeError):
        given(text)
