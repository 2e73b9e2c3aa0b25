"""Computes the findings that an audit must have, in plain Python.

All records were read, applied and kept.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from halfbridge.serde.records import DeadReason, HalfMetadata, Op, OpKind, OpSource
from tests.spark.tape import Content, Tape

REFUSALS = {DeadReason.NOT_ALLOWED, DeadReason.UNDELIVERABLE}


def expected(tape: Tape) -> set[tuple[str, str]]:
    """Return (kind, transaction id) of each violation."""
    return {(kind, txn) for txn, life in _lives(tape).items() for kind in _kinds(life)}


# --- what was written ----------------------------------------------------------------------


class Message(NamedTuple):
    """The first half record of a message; copies do not count."""

    at: int
    metadata: HalfMetadata
    flaw: str | None
    content: Content


@dataclass(frozen=True, slots=True)
class Life:
    """All records of one transaction."""

    messages: dict[int, Message] = field(default_factory=dict)  # by index, in order of offsets
    ops: list[Op] = field(default_factory=list)
    reals: Counter[Content] = field(default_factory=Counter)
    # By message index; LATE ones do not count.
    letters: defaultdict[int, list[DeadReason]] = field(default_factory=lambda: defaultdict(list))

    def reasons(self, index: int) -> set[DeadReason]:
        """Return the reasons of a message's dead letters."""
        return set(self.letters[index])


def _lives(tape: Tape) -> dict[str, Life]:
    """Return the records of each transaction on the tape, by transaction id."""
    lives: defaultdict[str, Life] = defaultdict(Life)
    for message in map(Message._make, tape.halves()):
        meta = message.metadata
        if meta.origin_offset < 0:
            lives[meta.transaction_id].messages.setdefault(meta.message_index, message)
    for op in tape.ops():
        lives[op.transaction_id].ops.append(op)
    for txn, content in tape.reals():
        lives[txn].reals[content] += 1
    for meta, reason in tape.letters():
        if reason != DeadReason.LATE:
            lives[meta.transaction_id].letters[meta.message_index].append(reason)
    return lives


# --- the required outcome ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Required:
    """Message indices by required outcome."""

    committed: set[int]  # counted by the COMMIT, and in time
    is_whole: bool  # `committed` has all that the COMMIT counts
    deliver: set[int]
    bury: set[int]  # must become dead letters
    late: set[int]  # stored after the decision: their dead letters are LATE


def _decisions(life: Life) -> Iterator[Op]:
    """Yield the ops that may decide; the first of them is the decision."""
    groups = [message.metadata.producer_group for message in life.messages.values()]
    for op in life.ops:
        may_discard = op.source in {OpSource.CHECKER, OpSource.OPERATOR}
        is_allowed = op.kind is not OpKind.DISCARD or may_discard
        if op.kind is not OpKind.UNKNOWN and is_allowed and op.producer_group in groups[:1]:
            yield op


def _required(life: Life) -> Required:
    op, stored = next(_decisions(life), None), set(life.messages)
    late = {i for i in stored if op and life.messages[i].at > op.half_offset}
    count = op.message_count if op and op.kind is OpKind.COMMIT else 0
    committed = {i for i in stored if i < count} - late
    is_whole = committed == set(range(count))
    is_flawed = any(life.messages[i].flaw for i in committed)
    deliver = committed if is_whole and not is_flawed else set()
    bury = stored - deliver - late if op and op.kind is not OpKind.ROLLBACK else set()
    return Required(committed, is_whole, deliver, bury, late)


# --- the actual outcome --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Delivered:
    """The real records, compared with the messages that must be delivered."""

    arrived: int  # messages that were delivered, `altered` included
    gone: int  # messages that were not
    altered: int  # messages in whose place a strange record was delivered
    strange: int  # records whose content is that of no message, those of `altered` included
    too_often: set[int]  # indices of messages with more records than they must have


def _delivered(life: Life, required: Required) -> Delivered:
    wanted = Counter(life.messages[i].content for i in required.deliver if not life.letters[i])
    missing, surplus = wanted - life.reals, life.reals - wanted
    too_often = {i for i, message in life.messages.items() if message.content in surplus}
    known = {message.content for message in life.messages.values()}
    strange = Counter({each: count for each, count in surplus.items() if each not in known})
    altered = (_by_topic(missing) & _by_topic(strange)).total()
    return Delivered(
        arrived=(wanted & life.reals).total() + altered,
        gone=missing.total() - altered,
        altered=altered,
        strange=strange.total(),
        too_often=too_often,
    )


def _by_topic(contents: Counter[Content]) -> Counter[str]:
    return Counter(topic for topic, *_ in contents.elements())


# --- violations ----------------------------------------------------------------------------


def _kinds(life: Life) -> set[str]:
    """Return the kinds of violations of one transaction."""
    if not life.messages:
        return {"phantom"} if life.reals else set()
    required = _required(life)
    came = _delivered(life, required)
    is_refused = any(life.reasons(i) & REFUSALS for i in required.deliver)
    found = {
        "conflict": _has_conflict(life),
        "mismatch": came.altered > 0,
        "torn": _is_torn(required, came, is_refused=is_refused),
        "lost": (came.gone and not came.arrived and not is_refused)
        or any(not life.letters[i] for i in required.bury)
        or any(life.reasons(i) - REFUSALS for i in required.deliver),
        "phantom": _is_phantom(life, required, came),
        "duplicate": any(len(each) > 1 for each in life.letters.values())
        or came.too_often & required.deliver,
    }
    return {kind for kind, is_so in found.items() if is_so}


def _has_conflict(life: Life) -> bool:
    """Tell whether an op contradicts the decision; a late op of the daemon's own does not count."""
    decisions = list(_decisions(life))
    others = [op for op in decisions if op.kind is not decisions[0].kind]
    return any(op.source is not OpSource.CHECKER for op in others)


def _is_torn(required: Required, came: Delivered, *, is_refused: bool) -> bool:
    """Tell whether one part was delivered and another was not."""
    fates = [came.arrived > 0, came.gone > 0, is_refused]
    is_part = not required.is_whole and came.too_often & required.committed
    return sum(fates) > 1 or bool(is_part)


def _is_phantom(life: Life, required: Required, came: Delivered) -> bool:
    """Tell whether a record or a dead letter was written that must not exist."""
    may_be_delivered = required.deliver if required.is_whole else required.committed
    untouched = life.messages.keys() - required.deliver - required.bury - required.late
    return (
        came.strange > came.altered
        or bool(came.too_often - may_be_delivered)
        or any(life.letters[i] for i in untouched)
    )
