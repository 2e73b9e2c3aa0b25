"""Why a transaction waits: undecided for its check, or decided for its delivery. Pure.

A committed message is not delivered yet for one of these reasons. Places are files, and names in
them, below halfbridge/checker.

- No worker runs, or the pair has no owner in a rebalance (NO_DAEMON, OPS_BEFORE).
- The pair is stopped for its committed offsets, its records or its topics' settings, or left out
  because brokers are silent or its records are unsafe (STOPPED as far as the logs say it, else
  OPS_BEFORE: /healthz of the workers names it; `loop/assignment.py:Assignment.start`).
- An open kafka_txn in the pair hides the half message (DECISION_WAITS), or the op, so that the
  transaction is PREPARED for everybody; doctor's `frozen-lso`.
- The op waits for its half offset (DECISION_WAITS; `core/ops.py:Ops.apply_waiting`).
- The ops before it are not applied (OPS_BEFORE): the plan is full or the pair is rebuilt
  (`core/ledger.py:Ledger.plan`), the batch is full (`loop/collector.py:Collector.collect`), a
  kafka_txn is under way or fails again and again (`loop/worker.py:Worker.turn`), the memory is
  spent (`loop/pair.py:Throttle`), the consumer is stalled (`loop/worker.py:StallWatch`), the
  installation's own topics are missing (`loop/topic_watch.py:OwnTopics`), or dead letters wait for
  their topic (`loop/topic_watch.py:TopicWatch.plan_must_wait`).
- The delivery is deferred (DEFERRED): its topic, its partition number or the right WRITE is
  missing, the partition is away or took no record in time (not written to for 5 to 60 s), or the
  first look-ups after the start are not done (`loop/topic_watch.py:TopicWatch.delivery_gate`,
  `loop/routes.py:Routes.lacks`); or an earlier deferred message has the same key
  (`core/deferred.py:Deferred.holds_key_of`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.core.schedule import backoff_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.checker.admin.read import Key
    from halfbridge.checker.core.entries import Entry
    from halfbridge.serde.delivery import Delivery
    from halfbridge.serde.records import CheckRequest, Op

PREPARED = "PREPARED"
# The daemon's defaults, for values that its settings record does not contain.
CHECK_BACKOFF_MS_MAX = 600_000
TOPIC_GONE_MS = 60_000


class Wait(str, Enum):
    """Why an undecided transaction waits."""

    NOT_DUE = "NOT_DUE"
    DUE = "DUE"
    ASKED = "ASKED"
    ANSWERED_UNKNOWN = "ANSWERED_UNKNOWN"
    CHECKER_FAILED = "CHECKER_FAILED"
    NOBODY_ANSWERS = "NOBODY_ANSWERS"
    NO_CHECK_TOPIC = "NO_CHECK_TOPIC"
    NO_DAEMON = "NO_DAEMON"
    DISCARD_DUE = "DISCARD_DUE"
    DECISION_WAITS = "DECISION_WAITS"


class DeliveryWait(str, Enum):
    """Why a decided transaction has no end yet; the module's docstring lists the causes."""

    NO_DAEMON = "NO_DAEMON"
    STOPPED = "STOPPED"
    DEFERRED = "DEFERRED"
    DECISION_WAITS = "DECISION_WAITS"
    OPS_BEFORE = "OPS_BEFORE"


class CheckRequests(NamedTuple):
    """Check requests about one transaction that have not expired, and the newest one."""

    requests: int
    last: CheckRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The daemon's limits that say when it asks and when it gives up, in milliseconds."""

    transaction_timeout_ms: int
    check_interval_ms: int
    check_count_max: int
    transaction_age_ms_max: int
    check_backoff_ms_max: int = CHECK_BACKOFF_MS_MAX
    # For how long a delivery waits for a real topic that is missing.
    topic_gone_ms: int = TOPIC_GONE_MS
    # The mode in which it delivers; None: its settings record does not say.
    delivery: Delivery | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitContext:
    """Facts from elsewhere than the half and op topics."""

    now_ms: int  # the operator's clock
    limits: Limits
    workers: int | None = None  # live workers of the daemon; None: not known
    check_topics: frozenset[str] = frozenset()  # producer groups that have a check topic
    # Producer group -> live members of its check responders, of groups that were asked about.
    members: Mapping[str, int] = field(default_factory=dict)
    # (transaction id, resume count, group) -> requests found; None: none were searched.
    asked: Mapping[Key, CheckRequests] | None = None
    # The same key -> the last answer that decides nothing.
    answers: Mapping[Key, Op] = field(default_factory=dict)


_Bytes = bytes  # a field of Undecided has that name


class Undecided(NamedTuple):
    """An undecided transaction. Times are milliseconds since 1970.

    A named tuple as records on the wire are: a list may have 100,000 of them.
    """

    id: str  # the transaction id, any text: a client wrote it
    resume_count: int
    producer_group: str
    state: str
    # Since the first half message was appended; None: its append time is not known.
    age_ms: int | None
    first_append_ms: int | None
    born_ms: int
    # Requests found in the check topic, at least the answered ones; None: not read.
    checks_asked: int | None
    checks_answered: int  # counted UNKNOWN answers
    next_check_at_ms: int | None
    messages: int
    bytes: int  # of the half messages' keys, values and headers
    # real_topic, real_partition: the first message's; None: the partition is chosen by key.
    real_topic: str
    real_partition: int | None
    # partition, offset: the pair, and the half offset of the first message's original.
    partition: int
    offset: int
    last_offset: int  # highest half offset of a message's original: a decision names it
    wait: Wait
    why: str
    key: _Bytes | None = None  # the first message's; None also if it was not requested


def undecided_of(
    entry: Entry, partition: int, world: WaitContext, *, decision: str = ""
) -> Undecided:
    """Return an undecided entry of a ledger as operators see it.

    `decision` is the kind of a decision that was read and cannot be applied yet; else empty.
    """
    messages = entry.messages
    only = len(messages) == 1
    first = next(iter(messages.values())) if only else messages[min(messages)]
    metadata = first.metadata
    asked = answer = None
    if world.asked or world.answers:
        key = metadata.transaction_id, metadata.resume_count, entry.group
        asked = world.asked.get(key) if world.asked else None
        answer = world.answers.get(key)
    append_ms = entry.first_append_ms
    due_ms = _due_ms(entry, asked, world.limits) if asked else entry.due_ms
    wait, why = _wait(
        _Facts(entry.group, entry.check_times, due_ms, asked, answer, decision), world
    )
    halves = messages.values()
    return Undecided(
        id=metadata.transaction_id,
        resume_count=metadata.resume_count,
        producer_group=entry.group,
        state=PREPARED,
        age_ms=None if append_ms < 0 else max(0, world.now_ms - append_ms),
        first_append_ms=None if append_ms < 0 else append_ms,
        born_ms=metadata.born_timestamp,
        checks_asked=_checks_asked(entry, asked, world),
        checks_answered=entry.check_times,
        next_check_at_ms=due_ms if due_ms > 0 and wait not in _NO_NEXT_CHECK else None,
        messages=len(messages),
        bytes=first.user_bytes if only else sum(half.user_bytes for half in halves),
        real_topic=metadata.real_topic,
        real_partition=None if metadata.real_partition < 0 else metadata.real_partition,
        partition=partition,
        offset=first.origin if only else min(half.origin for half in halves),
        last_offset=first.origin if only else max(half.origin for half in halves),
        wait=wait,
        why=why,
        key=first.body if isinstance(first.body, bytes) else None,
    )


_NO_NEXT_CHECK = (Wait.DISCARD_DUE, Wait.DECISION_WAITS)


class _Facts(NamedTuple):
    """What decides why a transaction waits."""

    group: str
    check_times: int
    due_ms: int
    asked: CheckRequests | None
    answer: Op | None
    decision: str


def _checks_asked(entry: Entry, asked: CheckRequests | None, world: WaitContext) -> int | None:
    if world.asked is None:
        return None
    return max(0 if asked is None else asked.requests, entry.check_times)


def _due_ms(entry: Entry, asked: CheckRequests, limits: Limits) -> int:
    if asked.last.check_number <= entry.check_times:
        return entry.due_ms  # the newest request was answered
    attempt = max(1, asked.last.attempt)
    wait_ms = backoff_ms(attempt, limits.check_interval_ms, limits.check_backoff_ms_max)
    return max(entry.due_ms, asked.last.sent_timestamp + wait_ms)


def _wait(facts: _Facts, world: WaitContext) -> tuple[Wait, str]:
    """Return why a transaction waits: its own reason first, then its group's, then the daemon's."""
    limits, check_times = world.limits, facts.check_times
    if facts.decision or check_times >= limits.check_count_max:
        return _wait_for_a_worker(facts, world)
    is_due = 0 < facts.due_ms <= world.now_ms
    if not check_times and facts.asked is None and facts.answer is None and not is_due:
        return Wait.NOT_DUE, "its producer may be at work: the first check is not due yet"
    if facts.group not in world.check_topics:
        text = f"group {facts.group} has no check topic, so nobody can be asked"
        return Wait.NO_CHECK_TOPIC, text
    if world.workers == 0:
        return Wait.NO_DAEMON, "no worker of the daemon runs, so nobody is asked"
    return _wait_for_an_answer(facts, has_members=world.members.get(facts.group) != 0)


def _wait_for_a_worker(facts: _Facts, world: WaitContext) -> tuple[Wait, str]:
    """Return why a decision, or the last counted answer, has had no effect yet."""
    if world.workers == 0:
        cause = f"a {facts.decision} is appended" if facts.decision else _counted(facts)
        return Wait.NO_DAEMON, f"{cause}, and no worker of the daemon runs"
    if facts.decision:
        return Wait.DECISION_WAITS, f"a {facts.decision} is appended and cannot be applied yet"
    return Wait.DISCARD_DUE, f"{_counted(facts)}; the daemon gives up by a DISCARD"


def _counted(facts: _Facts) -> str:
    return f"{facts.check_times} answers UNKNOWN are counted"


def _wait_for_an_answer(facts: _Facts, *, has_members: bool) -> tuple[Wait, str]:
    answer, asked = facts.answer, facts.asked
    if answer is not None and not answer.check_number:
        return Wait.CHECKER_FAILED, f"the checker gave no answer: {answer.reason or 'no reason'}"
    nobody = f"no member of group {facts.group} answers checks"
    if asked is not None and asked.last.check_number > facts.check_times:
        text = f"check {asked.last.check_number} was asked, attempt {asked.last.attempt}"
        if has_members:
            return Wait.ASKED, f"{text}; the answer is awaited"
        return Wait.NOBODY_ANSWERS, f"{text}; {nobody}"
    if facts.check_times:
        text = f"the last counted answer was UNKNOWN ({facts.check_times} so far)"
        return Wait.ANSWERED_UNKNOWN, text
    if has_members:
        return Wait.DUE, "a check is due; no request was found"
    return Wait.NOBODY_ANSWERS, f"a check is due; {nobody}"
