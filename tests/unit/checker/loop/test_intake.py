"""The group's member: generations, fences and pauses."""

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.errors import SlotTakenError
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.checker.loop.intake import (
    REASON_KEPT_S,
    TROUBLE_S,
    UNREAD_S,
    FirstReads,
    GroupTrouble,
    Input,
    MemberFailures,
    Reading,
)
from halfbridge.checker.process.slots import slot_ids
from halfbridge.kafka.errors import UNREACHABLE, Code, ConfigError, KafkaFailure
from halfbridge.kafka.first_reads import LethalRecord
from halfbridge.kafka.ports import NewTopic, TopicPartition
from halfbridge.serde.progress import Progress
from halfbridge.testkit.memory.machine import Machine
from tests.fake_ports import Clock, fake_ports

CONFIG = CheckerConfig()
HALF, OP = (CONFIG.names.half, 0), (CONFIG.names.op, 0)
PAIR = frozenset((HALF, OP))
FENCED = KafkaFailure(Code.FENCED_INSTANCE_ID, "fenced", is_fatal=True)


class _Reader:
    """A member of the group that returns `waiting`, and records the calls."""

    def __init__(self, properties: Mapping[str, Any], on_lost: Any = None) -> None:
        self.error_cb = properties.get("error_cb")
        self.on_lost = on_lost
        self.waiting: list[Any] = []
        self.reads: dict[tuple[str, int], int] | None = None
        self.paused: set[tuple[str, int]] = set()
        self.is_closed = False
        self.fatal: KafkaFailure | None = None
        self.assigned: Any = None
        self.revoked: Any = None

    def join(self, _topics: list[str], on_assigned: Any, on_revoked: Any) -> None:
        self.assigned, self.revoked = on_assigned, on_revoked

    def poll(self, _wait_s: float) -> Any:
        return self.waiting.pop(0) if self.waiting else None

    def take(self, records_max: int) -> list[Any]:
        taken, self.waiting = self.waiting[:records_max], self.waiting[records_max:]
        return taken

    def read_from(self, offsets: Mapping[tuple[str, int], int]) -> None:
        self.reads = dict(offsets)

    def pause(self, places: Iterable[tuple[str, int]]) -> None:
        self.paused |= set(places)

    def resume(self, places: Iterable[tuple[str, int]]) -> None:
        self.paused -= set(places)

    def positions(self, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(places, -1001)

    def membership(self) -> object:
        return "generation"

    def leave(self) -> None:
        if self.fatal is not None:
            raise self.fatal
        self.revoked(self)

    def close(self) -> None:
        self.is_closed = True


class _Kafka:
    """Creates members, and stores them.

    Attributes:
        refuses: Whether the client rejects its properties.
    """

    def __init__(self) -> None:
        self.members: list[_Reader] = []
        self.refuses = False

    def member(self, properties: Mapping[str, Any], *, on_lost: Any) -> _Reader:
        if self.refuses:
            raise ConfigError(field="kafka", value="", origin="Kafka client", allowed="")
        self.members.append(_Reader(properties, on_lost))
        return self.members[-1]


class _Scene:
    """An input whose member has one pair assigned and reads it from its beginning."""

    def __init__(self) -> None:
        self.kafka, self.clock = _Kafka(), Clock()
        ids = slot_ids("w-0", topic_prefix="")
        self.input = Input(CONFIG, ids, fake_ports(self.kafka, self.clock))
        self.assign()

    @property
    def member(self) -> _Reader:
        return self.kafka.members[-1]

    def assign(self) -> None:
        self.member.assigned(self.member, PAIR)
        assert self.input.changed
        self.input.changed = False
        self.input.read_from({HALF: 0, OP: 0})


@pytest.fixture
def scene() -> _Scene:
    """An input at work."""
    return _Scene()


def _record(place: tuple[str, int] | tuple[None, int], offset: int, error: Any = None) -> Any:
    return SimpleNamespace(
        topic=lambda: place[0],
        partition=lambda: place[1],
        offset=lambda: offset,
        error=lambda: error,
    )


def _failure(failure: KafkaFailure) -> Any:
    return _record((None, -1), -1001, failure)


@pytest.mark.parametrize("fatal", [None, FENCED], ids=["member", "fenced"])
def test_a_member_leaves_and_is_closed(scene: _Scene, fatal: KafkaFailure | None) -> None:
    """The member is closed, also if it is fenced and cannot leave."""
    scene.member.fatal = fatal
    scene.input.close(leave=True)
    assert scene.member.is_closed
    assert scene.input.is_member == (fatal is not None)


def test_a_member_that_fenced_itself_is_replaced(scene: _Scene) -> None:
    """After a lost connection one fence replaces the member; the next raises SlotTakenError."""
    old = scene.member
    old.on_lost()
    scene.clock.now += TROUBLE_S
    old.waiting = [_failure(FENCED)]
    with pytest.raises(InputLostError, match="a new one joins"):
        scene.input.fetch(0)
    assert old.is_closed
    assert (scene.input.assigned, scene.input.changed) == (frozenset(), True)

    scene.input.changed = False
    scene.assign()
    scene.member.waiting = [_failure(FENCED)]
    with pytest.raises(SlotTakenError):
        scene.input.fetch(0)


def test_what_a_member_says_that_was_given_up_changes_nothing(scene: _Scene) -> None:
    """Callbacks of a member that was replaced change nothing."""
    old = scene.member
    with pytest.raises(InputLostError):
        scene.input.renew("stalled")
    scene.input.changed = False
    scene.assign()
    old.assigned(old, frozenset())
    old.revoked(old)
    old.error_cb(FENCED)
    assert (scene.input.assigned, scene.input.changed) == (PAIR, False)
    assert scene.input.fetch(0) == []


def test_a_member_that_is_closing_takes_no_assignment(scene: _Scene) -> None:
    """A rebalance callback during close() does not ask for the membership, which would hang."""
    (member,) = scene.kafka.members
    asked_within_close: list[bool] = []

    def close() -> None:
        member.membership = lambda: asked_within_close.append(True)
        member.assigned(member, PAIR)
        member.is_closed = True

    member.close = close
    scene.input.close(leave=False)
    assert member.is_closed
    assert asked_within_close == []


def test_a_member_that_cannot_be_made_now_is_tried_again(scene: _Scene) -> None:
    """If a new member cannot be created, each fetch retries until one joins."""
    scene.kafka.refuses = True
    with pytest.raises(InputLostError, match="no new consumer"):
        scene.input.renew("stalled")
    with pytest.raises(InputLostError, match="no new consumer"):
        scene.input.fetch(0)
    scene.kafka.refuses = False
    with pytest.raises(InputLostError, match="stalled: a new one joins"):
        scene.input.fetch(0)
    assert scene.input.fetch(0) == []


def test_the_end_of_a_partition_may_lie_behind_what_was_read(scene: _Scene) -> None:
    """The reached offset includes markers; a paused partition has none."""
    scene.member.waiting = [_record(HALF, 5, KafkaFailure(Code.PARTITION_EOF))]
    scene.input.fetch(0)
    assert scene.input.reached() == {HALF: 5, OP: 0}
    scene.input.pause(*HALF)
    assert scene.input.reached() == {OP: 0}


def test_what_the_group_says_is_kept(scene: _Scene) -> None:
    """An authorization failure among the records is kept until the member is assigned."""
    refusal = KafkaFailure(Code.GROUP_AUTHORIZATION_FAILED, "no right")
    scene.member.waiting = [_failure(refusal)]
    scene.input.fetch(0)
    assert scene.input.group_trouble.text(scene.clock.now) == "no right"
    scene.member.assigned(scene.member, PAIR)
    assert scene.input.group_trouble.text(scene.clock.now) == ""


def test_a_pause_ends_with_the_assignment(scene: _Scene) -> None:
    """Revocation resumes paused partitions, since the client keeps pauses over assignments."""
    scene.input.pause(*HALF)
    scene.member.revoked(scene.member)
    assert (scene.member.paused, scene.input.assigned) == (set(), frozenset())


# --- when the group's member is replaced, and when a fence indicates another worker --------

CUT = KafkaFailure(next(iter(UNREACHABLE)), "the broker is not there")


@pytest.fixture
def clock() -> Clock:
    """A clock that does not advance."""
    return Clock()


def test_a_reason_is_kept_until_the_member_is_replaced(clock: Clock) -> None:
    """The reason is returned until the member is replaced."""
    failures = MemberFailures(clock)
    assert failures.why_replace() == ""
    failures.give_up("stalled")
    assert [failures.why_replace() for _ in range(2)] == ["stalled", "stalled"]
    failures.replaced()
    assert failures.why_replace() == ""


@pytest.mark.parametrize(("silent_s", "is_other"), [(TROUBLE_S, False), (TROUBLE_S + 1, True)])
def test_a_lost_connection_excuses_a_fence_for_a_while(
    clock: Clock, silent_s: float, *, is_other: bool
) -> None:
    """Within TROUBLE_S of a lost connection a fence replaces the member; later it is an error."""
    failures = MemberFailures(clock)
    failures.reported(CUT)
    assert failures.why_replace() == ""
    clock.now += silent_s
    failures.note(FENCED)
    if is_other:
        with pytest.raises(SlotTakenError, match="--slot"):
            failures.why_replace()
    else:
        assert failures.why_replace() == "the consumer could not go on (fenced)"


def test_one_lost_connection_excuses_one_fence(clock: Clock) -> None:
    """A second fence raises SlotTakenError: two workers must not alternate on one slot."""
    failures = MemberFailures(clock)
    failures.connection_lost()
    failures.note(FENCED)
    assert failures.why_replace()
    failures.replaced()
    failures.note(FENCED)
    with pytest.raises(SlotTakenError):
        failures.why_replace()


def test_only_reports_outside_of_calls_are_lost_connections(clock: Clock) -> None:
    """A failed call is not a lost connection, and does not excuse a fence."""
    clock.now += 2 * TROUBLE_S
    failures = MemberFailures(clock)
    failures.note(CUT)
    failures.note(FENCED)
    with pytest.raises(SlotTakenError):
        failures.why_replace()


# --- since when a consumer is read, and how long a failure of the group counts -------------

BEGIN = 1000.0


def test_reading_continues_while_records_are_taken_often_enough() -> None:
    """Pauses of up to UNREAD_S do not interrupt the reading."""
    reading = Reading()
    reading.begin({}, BEGIN)
    for step in range(100):
        reading.takes(BEGIN + step * UNREAD_S)
    assert reading.since(BEGIN + 99 * UNREAD_S) == BEGIN


def test_nothing_is_read_while_nobody_takes_records() -> None:
    """A pause longer than UNREAD_S begins the reading again, so that it is not a stall."""
    reading = Reading()
    reading.begin({}, BEGIN)
    reading.takes(BEGIN)
    late = BEGIN + UNREAD_S + 1
    assert reading.since(late) == late
    reading.takes(late)
    assert reading.since(late + 1) == late


def test_a_new_beginning_counts_anew() -> None:
    """Each rebuild begins the reading again, also from the same offsets."""
    reading = Reading()
    reading.begin({("half", 0): 7}, BEGIN)
    reading.takes(BEGIN)
    reading.begin({("half", 0): 7}, BEGIN + 3)
    assert reading.since(BEGIN + 4) == BEGIN + 3
    assert reading.ends == {("half", 0): 7}


def test_the_groups_word_counts_until_we_are_in_or_it_is_old() -> None:
    """A failure, reported every 30 s, expires after REASON_KEPT_S or ends with the assignment."""
    trouble = GroupTrouble()
    assert trouble.text(BEGIN) == ""
    trouble.note("not authorized", BEGIN)
    assert trouble.text(BEGIN + REASON_KEPT_S) == "not authorized"
    assert trouble.text(BEGIN + REASON_KEPT_S + 1) == ""
    trouble.note("not authorized", BEGIN)
    trouble.end()
    assert trouble.text(BEGIN) == ""


# --- marks of pairs that are being read, for workers on other machines ---------------------

HALF_TOPIC, OP_TOPIC = CONFIG.names.half, CONFIG.names.op
PROGRESS = Progress(half=3, op=2, rebuild_to=3, ops_from=1, position=3)
PAIRS = {0: PROGRESS, 1: PROGRESS}


class Taster:
    """Finds the records in `deadly`, and records the partitions it was asked about."""

    def __init__(self) -> None:
        self.deadly: dict[TopicPartition, LethalRecord] = {}
        self.asked: list[Mapping[TopicPartition, int]] = []

    def __call__(
        self, _properties: Mapping[str, Any], starts: Mapping[TopicPartition, int]
    ) -> LethalRecord | None:
        self.asked.append(starts)
        return next((self.deadly[place] for place in starts if place in self.deadly), None)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Yield brokers with half and op topic."""
    with Machine() as made:
        for topic in (HALF_TOPIC, OP_TOPIC):
            made.broker.create_topic(NewTopic(topic, 2, 1, {}))
        yield made


def _reads(machine: Machine, name: str, prober: Taster) -> FirstReads:
    return FirstReads(CONFIG, machine.ports(machine.process(name)), prober)


def test_pairs_that_were_rebuilt_are_read_at_once(machine: Machine) -> None:
    """Pairs whose rebuild was completed are read without a probe."""
    prober = Taster()
    first = _reads(machine, "first", prober)
    assert first.begin(PAIRS) == {}
    first.rebuilt(PAIRS)
    assert _reads(machine, "second", prober).begin(PAIRS) == {}
    assert prober.asked == []


def test_a_pair_that_ended_its_worker_is_left_out(machine: Machine) -> None:
    """The next worker probes all marked pairs from their rebuilds' start, and omits the deadly."""
    prober = Taster()
    assert _reads(machine, "first", prober).begin(PAIRS) == {}

    prober.deadly[HALF_TOPIC, 1] = LethalRecord(HALF_TOPIC, 1, 7, "SIGABRT")
    second = _reads(machine, "second", prober)
    (number, why), *more = second.begin(PAIRS).items()
    assert (number, more) == (1, [])
    assert f"{HALF_TOPIC}[1]@7" in why
    assert prober.asked == [{(HALF_TOPIC, pair): 3, (OP_TOPIC, pair): 1} for pair in PAIRS]

    second.rebuilt([0])
    prober.asked.clear()
    prober.deadly.clear()  # it was repaired
    third = _reads(machine, "third", prober)
    assert third.begin(PAIRS) == {}
    assert prober.asked == [{(HALF_TOPIC, 1): 3, (OP_TOPIC, 1): 1}]
    third.rebuilt(PAIRS)
    assert _reads(machine, "fourth", prober).begin(PAIRS) == {}
    assert len(prober.asked) == 1


def test_no_pair_waits_for_marks_that_cannot_be_read(machine: Machine) -> None:
    """If marks cannot be read, the pairs are served without a probe."""
    prober = Taster()
    machine.network.is_down = True
    assert _reads(machine, "first", prober).begin(PAIRS) == {}
    assert prober.asked == []
