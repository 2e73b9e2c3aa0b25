"""What `checker init` takes for proof of what was applied."""

from __future__ import annotations

from typing import Any

import pytest

from halfbridge.checker.admin.init import _says_of_a_decision
from halfbridge.checker.admin.read import LogRecord
from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.headers import DEAD
from halfbridge.serde.records import DeadDecision, DeadLetter, DeadReason


def _letter(reason: DeadReason, decision: DeadDecision) -> LogRecord:
    letter = DeadLetter(reason, "", 0, 0, 0, "half", 0, 0, decision)
    return LogRecord(0, 0, 0, None, None, [(DEAD, DEAD_LETTER.encode(letter))])


@pytest.mark.parametrize(
    ("reason", "decision", "says"),
    [
        (DeadReason.TOO_LARGE, DeadDecision.NONE, False),
        (DeadReason.TOO_LARGE, DeadDecision.COMMIT, True),
        (DeadReason.TOO_LARGE, DeadDecision.DISCARD, True),
        # Of a dead letter of version 1 the decision is not known.
        (DeadReason.NOT_ALLOWED, DeadDecision.NONE, True),
    ],
)
def test_a_message_that_no_transaction_can_have_proves_nothing(
    reason: DeadReason, decision: DeadDecision, *, says: bool
) -> None:
    """Its dead letter is written before its transaction is decided."""
    assert _says_of_a_decision(_letter(reason, decision)) is says


@pytest.mark.parametrize("headers", [[], [(DEAD, None)], [(DEAD, b"broken")]])
def test_a_letter_that_cannot_be_read_counts_as_before(headers: list[Any]) -> None:
    """RMQ_HALF says whose it is."""
    assert _says_of_a_decision(LogRecord(0, 0, 0, None, None, headers))
