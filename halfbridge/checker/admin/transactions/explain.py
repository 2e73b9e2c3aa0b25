"""Says in sentences where a transaction is, why, what happens next, and what can be done. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from halfbridge.checker.admin.real_topics import fix_command
from halfbridge.checker.admin.transactions.life import NOT_FOUND, Kind, Verdict
from halfbridge.checker.admin.transactions.waits import PREPARED, DeliveryWait, Wait
from halfbridge.checker.admin.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.admin.transactions.life import Event, Life
    from halfbridge.checker.admin.transactions.waits import Undecided
    from halfbridge.checker.core.deferred import Lack

# Deliveries, and decisions that lost, that are listed one by one: with the rest they fill a screen.
SHOWN_MAX = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# ms of each unit in which a duration is written, the largest first
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))

_DECIDE = (
    "To decide it by hand: halfbridge tx commit {id} --messages {messages} --reason TEXT, or"
    " halfbridge tx rollback {id} --reason TEXT. Find out first how its local transaction ended."
)
# For each reason: the next event, and the operator's options.
_NEXT: dict[Wait, tuple[str, str]] = {
    Wait.NOT_DUE: (
        "Its first check is due after max(immunity, transaction_timeout_ms).",
        "There is nothing to do: its producer usually decides before that.",
    ),
    Wait.DUE: (
        (
            "A worker asks once it has read the op partition to its end after the due time,"
            " first checks before repeats and at most check_rate_max a second."
        ),
        "If it stays so for minutes: see /healthz of the workers.",
    ),
    Wait.ASKED: (
        "Without an answer within the interval the group is asked again.",
        "If it stays so: see the log of the group's instances for checks.",
    ),
    Wait.ANSWERED_UNKNOWN: (
        (
            "Only explicit UNKNOWN answers count; at check_count_max of them the worker"
            " gives up by a DISCARD, and the messages become dead letters."
        ),
        "See why the checker of the group does not know how the local transaction ended.",
    ),
    Wait.CHECKER_FAILED: (
        (
            "Such an answer does not count: the group is asked again, with growing"
            " intervals, up to transaction_age_ms_max."
        ),
        "Mend the checker: see the log of the group's instances.",
    ),
    Wait.NOBODY_ANSWERS: (
        "The group is asked again, with growing intervals, up to transaction_age_ms_max.",
        "Start an instance of the producer group: any of them may answer.",
    ),
    Wait.NO_CHECK_TOPIC: (
        "Without a check topic nobody is asked, up to transaction_age_ms_max.",
        "Run halfbridge topics create --producer-group {group}.",
    ),
    Wait.NO_DAEMON: (
        "Nothing is asked, delivered or given up until a worker runs.",
        "Start the daemon: halfbridge checker run.",
    ),
    Wait.DISCARD_DUE: (
        (
            "The worker writes a DISCARD; it takes effect when it is read back and no decision"
            " precedes it."
        ),
        "A decision that is appended before that wins.",
    ),
    Wait.DECISION_WAITS: (
        (
            "An op waits until the half partition has been read to its half offset; a"
            " worker proves within seconds whether such a half message exists."
        ),
        "There is nothing to do while a worker runs.",
    ),
}

# The same of a decided transaction that is not ended; what is deferred has sentences of its own.
_NOT_ENDED = {
    DeliveryWait.NO_DAEMON: (
        "No worker of the daemon runs, so the decision has no effect yet (NO_DAEMON). Start the"
        " daemon: halfbridge checker run."
    ),
    DeliveryWait.STOPPED: (
        "Its pair is stopped, so the decision has no effect until that is mended (STOPPED)."
    ),
    DeliveryWait.DECISION_WAITS: (
        "The op waits until the half partition has been read to its half offset; a worker proves"
        " within seconds whether such a half message exists (DECISION_WAITS)."
    ),
    DeliveryWait.OPS_BEFORE: (
        "A worker applies it after the ops before it (OPS_BEFORE). If that takes minutes, see"
        " /healthz of the workers: it names a pair that is stopped or left out, a topic or"
        " partition that is missing, and memory that is spent."
    ),
}


def explain(life: Life) -> tuple[str, ...]:
    """Return sentences about a transaction, in the order in which a reader needs them.

    Texts of records are as clients wrote them: a caller that prints a sentence uses `one_line`.
    """
    if life.state == NOT_FOUND:
        return _not_found(life)
    sentences = _begin(life)
    if life.state == PREPARED and life.undecided is not None:
        sentences += _undecided(life, life.undecided)
    else:
        sentences += _decided(life)
    sentences += _lost(life)
    sentences += [f"{note[:1].upper()}{note[1:]}." for note in life.notes]
    return tuple(sentences)


def time_text(at_ms: int | None) -> str:
    """Return a time in UTC, such as 2026-01-31T12:00:00.123Z; `-` where it is not known."""
    if at_ms is None:
        return "-"
    try:
        moment = _EPOCH + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"  # a stranger's record
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def span_text(span_ms: int | None) -> str:
    """Return a span of time in its two largest units, such as 2h05m; `-` where it is not known."""
    if span_ms is None:
        return "-"
    left_ms = abs(span_ms)
    if left_ms < _UNITS[-1][1]:
        return f"{left_ms}ms"
    parts: list[str] = []
    for unit, unit_ms in _UNITS:
        if left_ms >= unit_ms or parts:
            parts.append(f"{left_ms // unit_ms}{unit}")
            left_ms %= unit_ms
    return "".join(parts[:2])


def _not_found(life: Life) -> tuple[str, ...]:
    until = "the end of the logs" if life.read_until_ms is None else time_text(life.read_until_ms)
    return (
        (
            f"No record of transaction {life.id} was found from {time_text(life.read_from_ms)} to"
            f" {until}."
        ),
        (
            "Half and op records are kept for the retention of their topics, 7 days unless it was"
            " changed; real records and dead letters for that of theirs."
        ),
        "Check the id and --topic-prefix; give --from TIME where the producer's clock was wrong.",
        *(f"{note[:1].upper()}{note[1:]}." for note in life.notes[1:]),
    )


def _begin(life: Life) -> list[str]:
    halves = _of_this_life(life, Kind.HALF)
    group = f"producer group {life.producer_group}, pair {life.partition}"
    text = f"Transaction {life.id} ({group}) is {life.state}"
    if life.resume_count:
        text += f" in its life number {life.resume_count}"
    if not halves:
        return [f"{text}; none of its half messages is there any more."]
    first = halves[0]
    topics = ", ".join(dict.fromkeys(each.real_topic or "" for each in halves[:SHOWN_MAX]))
    return [
        (
            f"{text}; it has {counted(len(halves), 'half message')} for {topics}, the first one"
            " stored at"
            f" {time_text(first.at_ms)} at half offset {first.offset}."
        )
    ]


def _undecided(life: Life, found: Undecided) -> list[str]:
    after, to_do = _NEXT[found.wait]
    sentences = [f"It waits because {found.why} ({found.wait.value}).", after]
    if found.next_check_at_ms is not None:
        left_ms = found.next_check_at_ms - life.at_ms
        when = f"in {span_text(left_ms)}" if left_ms > 0 else f"since {span_text(-left_ms)}"
        sentences.append(f"Its next check is due {when}, at {time_text(found.next_check_at_ms)}.")
    sentences += _lacks(life)
    sentences.append(to_do.format(group=found.producer_group))
    sentences.append(_DECIDE.format(id=found.id, messages=found.messages))
    return sentences


def _decided(life: Life) -> list[str]:
    sentences = []
    won = life.decided_by
    if won is not None:
        because = f" with the reason {won.reason}" if won.reason else ""
        sentences.append(
            f"It was decided by the {won.op} of {won.source} {won.actor}{because} at"
            f" {time_text(won.at_ms)}, op offset {won.offset}: the first decision in op order wins."
        )
    if life.delivery_wait in _NOT_ENDED:
        sentences.append(_NOT_ENDED[life.delivery_wait])
    if life.is_deferred:
        sentences += _deferred(life)
    elif life.is_applied is False:
        sentences += _lacks(life)
    delivered = [each for each in life.events if each.kind is Kind.DELIVERY]
    sentences += [
        f"Message {each.message_index} was delivered to {_place(each)} at {time_text(each.at_ms)}."
        for each in delivered[:SHOWN_MAX]
    ]
    if len(delivered) > SHOWN_MAX:
        sentences.append(f"{len(delivered) - SHOWN_MAX} more messages were delivered.")
    if life.state == "ROLLED_BACK":
        sentences.append("Nothing of it is delivered, and nothing can bring it back.")
    return sentences + _dead(life)


def _deferred(life: Life) -> list[str]:
    """Return why the delivery of a committed transaction waits, and how the wait ends."""
    text = "Its delivery is deferred; of later messages those with the same key wait behind it."
    sentences = [text]
    if life.lacks:
        sentences += _named(life.lacks)
        wait_ms = max(each.limit_ms for each in life.lacks)
        at_ms = None if life.decided_by is None else life.decided_by.at_ms
        until = "" if at_ms is None else f", at {time_text(at_ms + wait_ms)}"
        sentences.append(
            "It is delivered as soon as that is mended. Else its messages become dead letters,"
            f" UNDELIVERABLE, {span_text(wait_ms)} after the decision{until}, and halfbridge dead"
            f" redeliver {life.id} --reason TEXT brings them back."
        )
    else:
        sentences.append(
            "By the brokers' metadata its partitions take records. So a worker delivers it within"
            " seconds, unless an earlier message with the same key for the same topic waits, the"
            " daemon may not write to a topic, or brokers do not acknowledge: /healthz of the"
            " workers names topic and partition."
        )
    return sentences


def _lacks(life: Life) -> list[str]:
    """Return what would make the delivery wait if it was to be made now."""
    if not life.lacks:
        return []
    wait_ms = max(each.limit_ms for each in life.lacks)
    text = (
        f"A delivery waits for that, at most {span_text(wait_ms)} from the COMMIT on; then the"
        " messages become dead letters, UNDELIVERABLE."
    )
    return [*_named(life.lacks), text]


def _named(lacks: Sequence[Lack]) -> list[str]:
    texts = [f"{each}; run {fix_command(each)}." for each in lacks[:SHOWN_MAX]]
    named = [f"{text[:1].upper()}{text[1:]}" for text in texts]
    if len(lacks) > SHOWN_MAX:
        named.append(f"{len(lacks) - SHOWN_MAX} more topics or partitions cannot be written.")
    return named


def _dead(life: Life) -> list[str]:
    letters = _of_this_life(life, Kind.DEAD_LETTER)
    if not letters:
        return []
    reasons = ", ".join(sorted({each.reason or "a reason that cannot be read" for each in letters}))
    detail = f": {letters[0].why}" if letters[0].why else ""
    verb = "redeliver" if life.state == "COMMITTED" else "resume"
    command = f"halfbridge dead {verb} {life.id} --reason TEXT"
    return [
        (
            f"{len(letters)} of its messages are dead letters, for {reasons}{detail}; the"
            f" first one is {_place(letters[0])}."
        ),
        *(("The cause may still be there.", *_named(life.lacks)) if life.lacks else ()),
        f"To bring them back once the cause is gone: {command}.",
    ]


def _of_this_life(life: Life, kind: Kind) -> list[Event]:
    lives = (None, life.resume_count)
    return [each for each in life.events if each.kind is kind and each.resume_count in lives]


def _lost(life: Life) -> list[str]:
    lost = [
        each
        for each in life.events
        if each.kind is Kind.DECISION and each.verdict not in (None, Verdict.WON)
    ]
    sentences = [
        f"The {each.op} of {each.source} {each.actor} at {time_text(each.at_ms)}, op offset"
        f" {each.offset}, changed nothing: {each.why}."
        for each in lost[:SHOWN_MAX]
    ]
    if len(lost) > SHOWN_MAX:
        sentences.append(f"{len(lost) - SHOWN_MAX} more decisions changed nothing.")
    return sentences


def _place(each: Event) -> str:
    return f"{each.topic}[{each.partition}] at offset {each.offset}"
