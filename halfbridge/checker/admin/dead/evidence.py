"""Whether a dead letter says the truth: it is compared with the records that it names. Pure.

A dead letter is written by the daemon, but whoever may write to the dead-letter topic may write one
too. A forged letter that is redelivered unseen has a message delivered that was rolled back.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.dead.letters import Body
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import parse_half
from halfbridge.serde.records import NO_OFFSET

if TYPE_CHECKING:
    from halfbridge.checker.admin.dead.letters import Letter
    from halfbridge.checker.admin.read import LogRecord
    from halfbridge.serde.records import Op
    from halfbridge.serde.verifier import Verifier


class Source(NamedTuple):
    """What stands at a place that a letter names.

    Attributes:
        record: None where there is no record.
        is_deleted: The place is below the log start, by retention.
    """

    record: LogRecord | None = None
    is_deleted: bool = False


class Standing(Enum):
    """What is known of a letter."""

    PROVEN = "proven"
    DELETED = "the half record or the op that it names was deleted by retention"
    FORGED = "it contradicts the half record or the op that it names"


_WORST_FIRST = (Standing.FORGED, Standing.DELETED, Standing.PROVEN)


class Looked(NamedTuple):
    """A letter with what it names.

    Attributes:
        letter: The letter.
        standing: Whether the letter says the truth.
        body: The half record; None of a stub whose half record was deleted.
        op: The op that decided; None where it was deleted or does not exist.
    """

    letter: Letter
    standing: Standing
    body: Body | None
    op: Op | None


def look_at(
    letter: Letter,
    body: Body | None,
    half: Source,
    op: Source,
    verifier: Verifier | None = None,
) -> Looked:
    """Return what is known of a letter.

    Args:
        letter: The letter.
        body: What the letter holds; None: it is a stub, and its half record is returned.
        half: What stands where the letter says that its record stands.
        op: What stands where the letter says that the op stands; nothing where it names none.
        verifier: Judges the signatures of both; None: every record is believed.
    """
    stands = half.record
    there = None if stands is None else Body(stands.key, stands.value, stands.headers)
    decision = _op(op.record, verifier)
    standing = _of_source(letter, body, there, is_deleted=half.is_deleted)
    if letter.half is not None:
        if not half.is_deleted and not _is_believed(stands, verifier):
            standing = Standing.FORGED
        by_op = _of_op(letter, decision, is_deleted=op.is_deleted)
        standing = min(standing, by_op, key=_WORST_FIRST.index)
    return Looked(letter, standing, there if body is None else body, decision)


def _of_source(
    letter: Letter, body: Body | None, there: Body | None, *, is_deleted: bool
) -> Standing:
    if is_deleted:
        return Standing.DELETED
    if there is None:
        return Standing.FORGED
    if body is not None:
        return Standing.PROVEN if body == there else Standing.FORGED
    try:
        return Standing.PROVEN if parse_half(there.headers)[0] == letter.half else Standing.FORGED
    except DecodeError:
        return Standing.FORGED


def _of_op(letter: Letter, op: Op | None, *, is_deleted: bool) -> Standing:
    half = letter.half
    if is_deleted:
        return Standing.DELETED
    if letter.dead.op_offset == NO_OFFSET or op is None or half is None:
        return Standing.FORGED
    is_it = (
        op.transaction_id == half.transaction_id
        and op.resume_count == half.resume_count
        and op.producer_group == half.producer_group
        and op.kind.value == letter.decision.value
    )
    return Standing.PROVEN if is_it else Standing.FORGED


def _is_believed(record: LogRecord | None, verifier: Verifier | None) -> bool:
    """Tell whether a half record is believed; the daemon's letters are of such records only."""
    try:
        return record is None or verifier is None or bool(record.half(verifier))
    except DecodeError:
        return False


def _op(record: LogRecord | None, verifier: Verifier | None) -> Op | None:
    try:
        return None if record is None else record.op(verifier)
    except DecodeError:
        return None
