"""Each first decision takes effect once, in any order of writes, reads and kills.

Clients append random histories to one log; most keep the protocol (a half is acked before its
op), some do not. A ledger reads them in any interleaving, and its kafka_txns stand, are lost, or
stand and are followed by a restart. A model of a few lines reads the same log from its beginning
and says what must have come of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.events import NO_KEY, HalfRead, JunkRead, is_too_large
from halfbridge.checker.core.rebuild import check_against_log
from halfbridge.serde.progress import START, parse_progress
from halfbridge.serde.protocol import State
from halfbridge.serde.records import COUNT_UNKNOWN, OpKind, OpSource
from tests.kit.examples import given
from tests.ledger_weights import counted, weighed
from tests.playbook import BEGIN_MS, SETTINGS, UNLIMITED, Log, Reader, metadata, op_record
from tests.property import strategies as some
from tests.property.model import Truth, key_of, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.core.plan import Plan

QUICK = replace(
    SETTINGS,
    transaction_timeout_ms=100,
    check_interval_ms=100,
    check_count_max=3,
    check_backoff_ms_max=400,
    transaction_age_ms_max=2_000,
    readiness_before_discard_ms=200,
    republish_window_records=6,
    ledger_bytes_max=500,
)
# The ledger forgets decisions after 10 s; what comes later than that is another story.
LIFE_MS = 9_000
DRAIN_STEPS_MAX = 300
# The last counted answer writes a DISCARD, not a copy that would tell a rebuilt ledger of it.
ANSWERS_MAX = QUICK.check_count_max - 1
# Different keys of first messages.
KEYS = 3
# How long a delivery waits for its topic, at most.
WAIT_MS = 500


class History:
    """One partition pair, its clients, and a worker that may die at any step."""

    def __init__(self) -> None:
        self.log = Log()
        self.committed = START
        self.now_ms = BEGIN_MS
        self.life_ms = BEGIN_MS
        self.keys = [("T", "orders", 0)]
        self.offsets: dict[Any, dict[int, int]] = {}
        self.said: set[Any] = set()
        self.closed: set[Any] = set()
        self.taken: Any = None
        self.delivered: list[str] = []
        self.dead: list[tuple[str, HalfRead]] = []
        self.junk: list[tuple[bool, int]] = []
        self.reader = Reader(self.log, QUICK, START)

    # --- clients ---------------------------------------------------------------------------

    def begins(self, group: str, count: int, topic: str, flaw: str, size: int) -> None:
        """A producer stores the half messages of a new transaction."""
        key = f"T{len(self.keys)}", group, 0
        self.keys.append(key)
        for index in range(count):
            self._store(key, index, real_topic=topic, flaw=flaw, user_bytes=size)

    def stores_more(self, which: int, index: int, other: str) -> None:
        """A message comes twice, late, with a gap before it, or under another group's id."""
        transaction_id, _, life = self._pick(which)
        key = transaction_id, other, life
        if key not in self.closed:
            self._store(key, index)

    def is_redelivered(self, which: int, indices: set[int]) -> None:
        """An operator commits messages of a transaction again, in one kafka_txn with their op."""
        transaction_id, group, _ = self._pick(which)
        life = 1 + max(each[2] for each in self.keys if each[0] == transaction_id)
        key = transaction_id, group, life
        self.keys.append(key)
        for index in sorted(indices):
            self._store(key, index)
        op = op_record(key[0], OpKind.COMMIT, half_offset=self.log.half_end - 1)._replace(
            producer_group=group, resume_count=life, source=OpSource.OPERATOR
        )
        self.said.add(key)
        self.log.append_op(op, self.now_ms)

    def says(self, which: int, said: some.Said, foreign: str) -> None:
        """Somebody decides or answers, rightly or not, for the first or the fifth time."""
        key = self._pick(which)
        if foreign:
            key = key[0], foreign, key[2]
        if key not in self.offsets and said.kind is OpKind.UNKNOWN:
            return
        offsets = self.offsets.get(key, {})
        reach = said.reach
        half_offset = (
            self.log.half_end - 1
            if reach == "end"
            else max(offsets.values(), default=0) + int(reach)
        )
        if half_offset >= self.log.half_end:
            self.closed.add(key)  # how much such an op covers depends on when it is looked at
        number = said.check_number
        if number == some.THE_NEXT:
            number = Truth(self.log, UNLIMITED).undecided.get(key, 0) + 1
        op = op_record(key[0], said.kind, half_offset=half_offset)._replace(
            producer_group=key[1],
            resume_count=key[2],
            source=said.source,
            check_number=number,
            message_count=len(offsets) if said.counted else COUNT_UNKNOWN,
        )
        self.said.add(key)
        self.log.append_op(op, self.now_ms)

    def writes_junk(self, in_half: bool) -> None:
        """A record comes that cannot be read."""
        log = self.log
        if in_half:
            log.half.append(JunkRead(log.half_end, self.now_ms, "broken", 100, None))
            log.half_end += 1
        else:
            log.op.append(JunkRead(log.op_end, self.now_ms, "broken", 100, "body"))
            log.op_end += 1

    # --- time ------------------------------------------------------------------------------

    def time_passes(self, ms: int) -> None:
        """Time passes."""
        if self.now_ms - self.life_ms < LIFE_MS:
            self.now_ms += ms

    def long_silence(self, ms: int) -> None:
        """All is applied, then nothing happens for so long that decisions may be forgotten."""
        self._drain()
        self.closed |= self.offsets.keys() | self.said
        self.now_ms += ms
        self.life_ms = self.now_ms

    # --- the worker ------------------------------------------------------------------------

    def reads_halves(self, count: int) -> None:
        """Some half records are read."""
        self.reader.read_half(count)

    def reads_ops(self, count: int) -> None:
        """Some op records are read."""
        self.reader.read_op(count)

    def works(self, limit: int) -> None:
        """A whole turn: read what is there, plan, commit."""
        self.commits()
        self.reader.read()
        self.takes_a_plan(limit)
        self.commits()

    def is_asked_and_answers(self, which: int, said: some.Said) -> None:
        """A check falls due and is answered."""
        self.works(limit=UNLIMITED)
        self.time_passes(QUICK.check_interval_ms)
        self.asks(limit=UNLIMITED)
        self.says(which, said, "")

    def asks(self, limit: int) -> None:
        """Checks fall due; nobody is asked about what was decided before op p's end."""
        ledger = self.reader.ledger
        ledger.op_end(self.log.op_end, self.now_ms)
        truth = Truth(self.log, ledger.progress().op)
        for check in ledger.checks(self.now_ms, limit):
            key = key_of(check.half)
            assert key in truth.undecided
            assert check.check_number <= truth.undecided[key] + 1

    def takes_a_plan(self, limit: int) -> None:
        """A plan is taken; the kafka_txn that carries it is still open."""
        if self.taken is not None:
            return
        self._ask_half_end()
        self.taken = self._plan_of(self.reader, limit)

    def _plan_of(self, reader: Reader, limit: int = UNLIMITED) -> Plan:
        return reader.ledger.plan(self.now_ms, records_max=limit, size_bytes_max=UNLIMITED)

    def commits(self) -> None:
        """The kafka_txn commits."""
        if self.taken is None:
            return
        ledger, plan = self.reader.ledger, self.taken
        self.taken = None
        copies_end = self.log.write(plan, self.now_ms)
        progress = ledger.progress(copies_end)
        self.delivered += _delivered(plan)
        self.dead += [(each.reason.value, each.half) for each in plan.dead]
        self.junk += [(each.is_op, each.record.offset) for each in plan.junk]
        assert parse_progress(progress.half, progress.op, progress.metadata()) == progress
        check_against_log(progress, (0, self.log.half_end), (0, self.log.op_end))
        self._check_progress(progress)
        ledger.committed(progress)
        self.committed = progress

    def dies(self) -> None:
        """The worker dies, with or without a kafka_txn open, and another one begins."""
        self.taken = None
        self.reader = Reader(self.log, QUICK, self.committed)

    def would_do_the_same_after_a_restart(self) -> None:
        """A ledger that is rebuilt now behaves exactly as this one does."""
        self.commits()
        if not self.reader.ledger.is_rebuilt:
            return
        self.reader.read_half(0)
        self.reader.read_op(0)
        twin = Reader(self.log, QUICK, self.committed)
        twin.read_half(self.reader.half_at - twin.half_at)
        twin.read_op(self.reader.op_at - twin.op_at)
        # PARTITION_EOF may have been seen before the next record was appended.
        twin.ledger.half_read_to(self.reader.ledger._position)
        twin.ledger.op_read_to(self.reader.ledger._op_position)
        self._ask_half_end()
        # The twin gets the ends that this one knows: it could ask only after its first plan.
        mine, its = self.reader.ledger._waiting, twin.ledger._waiting
        assert [read.offset for read in its] == [read.offset for read in mine]
        its.clear()
        its.extend(mine)
        self.takes_a_plan(limit=UNLIMITED)
        plan = self._plan_of(twin)
        if not twin.ledger.is_rebuilt:
            return  # this one had not come so far yet either
        assert _delivered(plan) == _delivered(self.taken)
        live, rebuilt = _known(self.reader), _known(twin)
        assert rebuilt["undecided"] == live["undecided"]
        assert rebuilt["deferred"] == live["deferred"]
        # This one may have forgotten some more, from the front, since it said where T stands.
        more = len(rebuilt["decided"]) - len(live["decided"])
        assert more >= 0
        assert rebuilt["decided"][more:] == live["decided"]

    def weighs_rightly(self) -> None:
        """Running counts equal a new count of the records."""
        assert counted(self.reader.ledger) == weighed(self.reader.ledger)

    def ends(self) -> None:
        """At the end everything that was decided has had its effect, and nothing else has."""
        self._drain()
        truth = Truth(self.log, UNLIMITED)
        self._check_delivered(truth, self.committed)
        dead = Counter(truth.dead_line(reason, half) for reason, half in self.dead)
        assert truth.dead - dead == Counter()
        assert dead - truth.dead - truth.perhaps == Counter()
        assert sorted(self.junk) == [
            (is_op, record.offset)
            for is_op, records in ((False, self.log.half), (True, self.log.op))
            for record in records
            if isinstance(record, JunkRead)
        ]
        undecided = {key: reported[0] for key, reported in _known(self.reader)["undecided"].items()}
        assert undecided == {
            key: 0 if is_too_large(truth.messages[key].values()) else min(n, ANSWERS_MAX)
            for key, n in truth.undecided.items()
        }
        ledger = self.reader.ledger
        assert ledger.ops_waiting == 0
        assert self.committed.op == self.log.op_end
        halves = sum(len(truth.messages[key]) for key in truth.undecided)
        assert ledger.held_halves == halves
        if not halves:
            assert self.committed.half == self.log.half_end

    # --- parts -----------------------------------------------------------------------------

    def _check_delivered(self, truth: Truth, progress: Any) -> None:
        assert not progress.deferred
        assert self.delivered == truth.delivered

    def _pick(self, which: int) -> tuple[str, str, int]:
        return self.keys[-1 - which % len(self.keys)]  # the newest is the simplest example

    def _store(
        self,
        key: Any,
        index: int,
        *,
        flaw: str = "",
        real_topic: str = "real",
        user_bytes: int = 0,
    ) -> None:
        reported = metadata(key[0], index)._replace(
            producer_group=key[1], resume_count=key[2], real_topic=real_topic
        )
        offset = self.log.append_half(
            reported,
            self.now_ms,
            flaw=flaw,
            user_bytes=user_bytes,
            key_number=_key_number(key, index),
        )
        self.offsets.setdefault(key, {})[index] = offset

    def _ask_half_end(self) -> None:
        waiting = self.reader.ledger.wants_half_end(self.now_ms)
        if waiting is not None:
            self.reader.ledger.half_end(self.log.half_end, waiting)

    def _drain(self) -> None:
        self.commits()
        for _ in range(DRAIN_STEPS_MAX):
            self.reader.read()
            self.takes_a_plan(limit=UNLIMITED)
            wrote = self.taken.records
            self.commits()
            if not wrote and not self.reader.ledger.ops_waiting:
                return
            if not wrote:
                self.now_ms += 1_000  # an op waits for what will never come
        raise AssertionError("it never comes to rest")

    def _check_progress(self, progress: Any) -> None:
        """The committed offset is enough to begin from: nothing undecided or needed is below it."""
        assert progress.half <= progress.position <= progress.rebuild_to
        truth = Truth(self.log, progress.op)
        self._check_delivered(truth, progress)
        above: dict[Any, set[int]] = {}
        for record in self.log.half:
            if isinstance(record, HalfRead) and record.offset >= progress.half:
                above.setdefault(key_of(record), set()).add(record.metadata.message_index)
        held = {*truth.undecided, *self._deferred_keys(truth, progress)}
        for key in held:
            assert truth.messages[key].keys() <= above.get(key, set())
        for key, op_offset in truth.decided_by.items():
            if key in above:
                assert op_offset >= progress.ops_from

    def _deferred_keys(self, truth: Truth, progress: Any) -> set[Any]:
        """Return the transactions whose delivery waits: a rebuild needs their messages."""
        offsets = {*progress.deferred}
        return {key for key, op_offset in truth.decided_by.items() if op_offset in offsets}


class Deferring(History):
    """A history in which real topics go away and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()

    def goes_away(self, topic: str) -> None:
        """A real topic cannot be written for now."""
        self.away.add(topic)

    def is_back(self, topic: str) -> None:
        """It can be written again."""
        self.away.discard(topic)

    def ends(self) -> None:
        """At the end no topic is away, and no delivery waits any more."""
        self.away.clear()
        super().ends()
        assert not self.committed.deferred

    def _plan_of(self, reader: Reader, limit: int = UNLIMITED) -> Plan:
        return reader.ledger.plan(
            self.now_ms, records_max=limit, size_bytes_max=UNLIMITED, awaits=self._awaits
        )

    def _awaits(self, messages: Sequence[HalfRead], op_append_ms: int, _again: bool) -> bool:
        is_away = any(half.metadata.real_topic in self.away for half in messages)
        return is_away and self.now_ms - op_append_ms < WAIT_MS

    def _check_delivered(self, truth: Truth, progress: Any) -> None:
        """Each once, but for those that wait; those of one key in the order of their decisions."""
        waiting = {_whose(key) for key in self._deferred_keys(truth, progress)}
        expected = [each for each in truth.delivered if each.partition(" [")[0] not in waiting]
        assert sorted(self.delivered) == sorted(expected)
        for number in range(KEYS):
            for topic in ("real", "other"):
                placed = _placed(truth, number, topic)
                assert [one for one in self.delivered if one in placed] == [
                    one for one in expected if one in placed
                ]


def _whose(key: Any) -> str:
    """Return how the lines of a transaction's delivered messages begin."""
    transaction_id, group, life = key
    return f"delivered {transaction_id}{f'/{life}' if life else ''} of {group}"


def _placed(truth: Truth, number: int, topic: str) -> set[str]:
    """Return the lines of the messages for a topic with the key of this number."""
    return {
        f"{_whose(key)} [{index}]"
        for key, messages in truth.messages.items()
        for index, half in messages.items()
        if half.metadata.real_topic == topic and half.key_number == number
    }


def _key_number(key: Any, index: int) -> int:
    """Return the number of a message's key: there are few keys, and some have none."""
    number = (int(key[0][1:] or 0) + index) % (KEYS + 1)
    return NO_KEY if number == KEYS else number


def _delivered(plan: Plan) -> list[str]:
    return [line("delivered", half) for each in plan.deliveries for half in each.messages]


def _known(reader: Reader) -> dict[str, Any]:
    undecided = {}
    book = reader.ledger._book
    for entry in book.entries:
        if entry.state is State.UNDECIDED:
            origins = {index: half.origin for index, half in entry.messages.items()}
            # An answer about one that is too large writes a DISCARD: no copy tells of it.
            is_large = is_too_large(entry.messages.values())
            answers = 0 if is_large else min(entry.check_times, ANSWERS_MAX)
            key = entry.key[0], entry.group, entry.key[1]
            undecided[key] = answers, origins, entry.first_append_ms
    decided = [
        (entry.op_offset, *entry.key[:2], entry.group, entry.state) for entry in book.decided._queue
    ]
    return {"undecided": undecided, "decided": decided, "deferred": book.deferred.offsets}


@some.PROFILE
@given(steps=some.histories)
def test_first_decisions_take_effect_once_whatever_happens(steps: list[some.Step]) -> None:
    """Delivered are the first decisions in op order, each once, and nothing is lost."""
    history = History()
    for name, arguments in steps:
        getattr(history, name)(*arguments)
        history.weighs_rightly()
    history.ends()
    history.weighs_rightly()


@some.PROFILE
@given(steps=some.histories_with_topics_away)
def test_deliveries_that_wait_come_once_and_delay_no_other(steps: list[some.Step]) -> None:
    """A topic that is away delays its own deliveries and later ones of their keys, and no other."""
    history = Deferring()
    for name, arguments in steps:
        getattr(history, name)(*arguments)
        history.weighs_rightly()
    history.ends()
    history.weighs_rightly()
