"""The judge compares the real and dead-letter topics with the op log.

The model of tests/property reads half and op log once, slowly, from their beginning: the first
decision in op order rules. What it says is delivered must stand there exactly once, complete, in
that order and byte for byte; what it says is dead must be in the dead-letter topic; nothing else.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.events import HalfRead, JunkRead, OpRead
from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.headers import (
    BORN_TIMESTAMP,
    DEAD,
    MESSAGE_INDEX,
    TRANSACTION_ID,
    real_identity,
)
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.protocol import REASON_AGE, REASON_CHECK_TIMES
from halfbridge.serde.records import DeadReason, OpKind, OpSource
from tests.ledger_log import Log
from tests.property.model import Truth, key_of, line
from tests.simulation.asked import judge_discards
from tests.simulation.feed_judge import FEED_PLACES
from tests.simulation.reading import read_log, visible
from tests.simulation.repeats import repeats_in, without_repeats
from tests.simulation.settings import (
    LEDGER,
    NAMES,
    PARTITIONS,
    REAL_TOPICS,
    SMALL,
    SMALL_BYTES,
    WAITING_LEDGER,
    BrokenPromiseError,
)
from tests.simulation.stranger import NO_SUCH_PARTITION

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from halfbridge.kafka.ports import TopicPartition
    from halfbridge.testkit.memory.log import Record
    from tests.simulation.settings import Profile
    from tests.simulation.world import World

UNLIMITED = 1 << 60
# What becomes of messages that their decision does not cover, or covers without the others.
TORN = ("INCOMPLETE ", "EXTRA ", "LATE ")
OURS = (TRANSACTION_ID, BORN_TIMESTAMP, MESSAGE_INDEX)


class Rulings(Truth):
    """The model, with what only a broker's clock can say: a discard for age proves it."""

    def __init__(self, log: Log, op_end: int, *, age_ms_max: int) -> None:
        self._age_ms_max = age_ms_max
        self.answers: Counter[tuple[str, str, int]] = Counter()
        super().__init__(log, op_end)

    def _apply(self, read: OpRead) -> None:
        op = read.op
        key = op.transaction_id, op.producer_group, op.resume_count
        self.answers[key] = max(self.answers[key], self.undecided.get(key, 0))
        is_ours = op.kind is OpKind.DISCARD and op.source is OpSource.CHECKER
        if is_ours and op.reason == REASON_CHECK_TIMES:
            answers = self.undecided.get(key, LEDGER.check_count_max)
            if answers < LEDGER.check_count_max:
                raise BrokenPromiseError(f"{key} discarded after {answers} counted answers")
        if is_ours and op.reason == REASON_AGE:
            if op.age_ms != self._age_ms_max:
                raise BrokenPromiseError(f"{key} discarded for an age of {op.age_ms} ms")
            known = self.messages.get(key)
            if known:
                first = min(known.values(), key=lambda half: half.offset)
                if read.append_ms - first.append_ms < self._age_ms_max:
                    return
        super()._apply(read)
        self.answers[key] = max(self.answers[key], self.undecided.get(key, 0))


class Judge:
    """Watches the real topics during a run, and rules at its end.

    Attributes:
        repeats: Records of messages that a real topic had before, one for each repetition.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.repeats = 0
        self._places = [
            (topic, number) for topic, count in REAL_TOPICS.items() for number in range(count)
        ]
        if world.feed is not None:
            self._places += FEED_PLACES
        self._positions = dict.fromkeys(self._places, 0)
        self._deaf = frozenset(world.deaf)
        self._seen: dict[TopicPartition, list[Record]] = {place: [] for place in self._places}

    def watch(self) -> None:
        """Read on, as a read_committed consumer that was there all the time."""
        for place in self._there:
            found, self._positions[place] = self._world.partition(place).read(
                self._positions[place], UNLIMITED
            )
            self._seen[place] += found

    @property
    def _there(self) -> list[TopicPartition]:
        """The real partitions that are there."""
        return [place for place in self._places if place[0] in self._world.broker.topics]

    def rule(self, *, is_final: bool) -> None:
        """Compare everything.

        Args:
            is_final: Everything has settled: what is missing is lost.

        Raises:
            BrokenPromiseError: a promise was broken.
        """
        world = self._world
        for place in self._there:
            seen = self._seen[place]
            late_reader = visible(world.partition(place))
            if late_reader[: len(seen)] != seen:
                raise BrokenPromiseError(f"{place}: two readers saw different records")
        logs = [read_log(world, number) for number in range(PARTITIONS)]
        age_ms_max = world.profile.ledger.transaction_age_ms_max
        truths = [Rulings(log, UNLIMITED, age_ms_max=age_ms_max) for log in logs]
        delivered = self._delivered()
        if world.feed is not None:
            world.feed.judge.add_deliveries(delivered)
            world.feed.judge.rule(logs, is_final=is_final)
        dead, junk = self._dead(logs, truths)
        for number, (log, truth) in enumerate(zip(logs, truths, strict=True)):
            expected, undeliverable = _split(truth, world.profile, world.shut, dead[number])
            truth.dead.update(undeliverable)
            if world.delivery is Delivery.AT_LEAST_ONCE:
                self.repeats += repeats_in(delivered[number])
                known = set(truth.delivered)
                delivered[number] = without_repeats(delivered[number], known, set(expected))
            _compare_deliveries(expected, delivered[number], _keys(truth), is_final=is_final)
            _compare_dead(truth, dead[number], is_final=is_final)
            _compare_junk(log, junk[number], is_final=is_final)
            _compare_copies(log, truth, is_final=is_final)
            if is_final and not world.rate and world.profile.ledger in {LEDGER, WAITING_LEDGER}:
                judge_discards(world, log, truth, deaf=self._deaf)
            if is_final and truth.undecided:
                raise BrokenPromiseError(f"undecided to the end: {sorted(truth.undecided)}")
        if is_final:
            self._compare_with_database(truths)

    def _delivered(self) -> list[dict[TopicPartition, list[str]]]:
        """Return what each half partition's transactions delivered, in words, by real partition."""
        world = self._world
        found: list[dict[TopicPartition, list[str]]] = [{} for _ in range(PARTITIONS)]
        for place in self._there:
            if place in FEED_PLACES:
                continue
            for record in visible(world.partition(place)):
                sent = world.sent.get(record.value() or b"")
                if sent is None:
                    raise BrokenPromiseError(f"{place}@{record.offset()}: sent by nobody")
                headers = record.headers() or []
                added = headers[len(sent.headers) :]
                named = OURS if sent.message_index else OURS[:-1]
                if (
                    real_identity(added) != (sent.transaction_id, sent.message_index)
                    or headers[: len(sent.headers)] != sent.headers
                    or record.key() != sent.key
                    or place[0] != sent.real_topic
                    or not _is_of_its_key(place, sent.key)
                    or tuple(name for name, _ in added) != named
                ):
                    where = f"{place}@{record.offset()}"
                    raise BrokenPromiseError(f"{where}: not as it was sent: {sent}")
                words = f"delivered {sent.transaction_id} of {sent.group} [{sent.message_index}]"
                found[sent.partition].setdefault(place, []).append(words)
        return found

    def _dead(
        self, logs: list[Log], truths: list[Rulings]
    ) -> tuple[list[Counter[str]], list[list[tuple[str, int]]]]:
        """Return dead letters in words, and the offsets of the dead junk, by partition."""
        world = self._world
        halves = [
            {each.offset: each for each in log.half if isinstance(each, HalfRead)} for log in logs
        ]
        dead: list[Counter[str]] = [Counter() for _ in logs]
        junk: list[list[tuple[str, int]]] = [[] for _ in logs]
        for record in visible(world.partition((NAMES.dead, 0))):
            *headers, (name, value) = record.headers() or []
            if name != DEAD:
                raise BrokenPromiseError(f"dead letter @{record.offset()} without its header")
            letter = DEAD_LETTER.decode(value or b"")
            number, offset = letter.source_partition, letter.source_offset
            source = world.partition((letter.source_topic, number)).slots[offset]
            if source is None or (record.key(), record.value(), headers or None) != (
                source.key(),
                source.value(),
                source.headers(),
            ):
                raise BrokenPromiseError(f"dead letter @{record.offset()} is not what stood there")
            if letter.reason is DeadReason.INVALID:
                junk[number].append((letter.source_topic, offset))
                continue
            half = halves[number][offset]
            dead[number][truths[number].dead_line(letter.reason.value, half)] += 1
        return dead, junk

    def _compare_with_database(self, truths: list[Rulings]) -> None:
        """Where nobody lied, what was delivered is what the local transactions committed.

        A local transaction commits only once all its half messages are acknowledged. So each of
        them stands in its half partition, and the decision covers all of them.
        """
        world = self._world
        for truth in truths:
            torn = {tuple(words.split()[1:4:2]) for words in truth.dead if words.startswith(TORN)}
            delivered = {tuple(words.split()[1:4:2]) for words in truth.delivered}
            for name, group, _life in truth.messages:
                if name in world.contested or world.owners.get(name) != group:
                    continue
                is_kept = world.database[name]
                if (name, group) in delivered and not is_kept:
                    raise BrokenPromiseError(f"{name}: delivered, and its local transaction failed")
                is_found = (name, group) in delivered or _is_dead(truth, name, group)
                if is_kept and not is_found:
                    raise BrokenPromiseError(f"{name}: lost, and its local transaction committed")
                if is_kept and (name, group) in torn:
                    raise BrokenPromiseError(f"{name}: torn, and its local transaction committed")
        stored = {key[:2] for truth in truths for key in truth.messages}
        for name, is_kept in world.database.items():
            if is_kept and name not in world.contested and (name, world.owners[name]) not in stored:
                raise BrokenPromiseError(f"{name}: committed, and its half messages are not stored")


def _is_of_its_key(place: TopicPartition, key: bytes | None) -> bool:
    """Tell whether Java's default partitioner puts this key there; a null key goes anywhere."""
    return key is None or place[1] == partition_of(key, REAL_TOPICS[place[0]])


def _is_refused(half: HalfRead, profile: Profile) -> bool:
    """Tell whether its real topic never takes a message."""
    is_small = profile.refuses and half.metadata.real_topic == SMALL
    return half.metadata.real_partition == NO_SUCH_PARTITION or (
        is_small and len(half.body.value()) > SMALL_BYTES
    )


def _split(
    truth: Rulings, profile: Profile, shut: AbstractSet[str], dead: Counter[str]
) -> tuple[list[str], Counter[str]]:
    """Return what must be delivered, and what the broker refuses.

    Where a topic was shut for a while, what became of the transaction says which of the two.
    """
    delivered = set(truth.delivered)
    refused = {
        key
        for key, messages in truth.messages.items()
        for half in messages.values()
        if line("delivered", half) in delivered
        and (
            _is_refused(half, profile)
            or (half.metadata.real_topic in shut and dead[line("UNDELIVERABLE", half)])
        )
    }
    undeliverable: Counter[str] = Counter()
    gone = set()
    for key in sorted(refused):
        for half in truth.messages[key].values():
            gone.add(line("delivered", half))
            if line("delivered", half) in delivered:
                undeliverable[line("UNDELIVERABLE", half)] += 1
    return [words for words in truth.delivered if words not in gone], undeliverable


def _keys(truth: Rulings) -> dict[str, object]:
    """Return message -> its key; without a key, its transaction."""
    keys: dict[str, object] = {}
    for transaction, messages in truth.messages.items():
        for half in messages.values():
            body: Any = half.body
            key = body.key()
            keys[line("delivered", half)] = transaction if key is None else key
    return keys


def _compare_deliveries(
    expected: list[str],
    delivered: dict[TopicPartition, list[str]],
    keys: dict[str, object],
    *,
    is_final: bool,
) -> None:
    """Each message once, and in each real partition those of one key in op order."""
    ranks = {words: rank for rank, words in enumerate(expected)}
    found: set[str] = set()
    for place, lines in delivered.items():
        newest: dict[object, int] = {}
        for words in lines:
            rank = ranks.get(words)
            if rank is None:
                raise BrokenPromiseError(f"{place}: {words}, which nobody decided")
            if words in found:
                raise BrokenPromiseError(f"{place}: {words} twice")
            if rank < newest.get(keys[words], -1):
                raise BrokenPromiseError(f"{place}: {words} after one that was decided later")
            newest[keys[words]] = rank
            found.add(words)
    if is_final and len(found) < len(expected):
        raise BrokenPromiseError(f"lost: {[words for words in expected if words not in found]}")


def _compare_dead(truth: Rulings, dead: Counter[str], *, is_final: bool) -> None:
    extra = dead - truth.dead - truth.perhaps
    if extra:
        raise BrokenPromiseError(f"dead letters that should not be there: {dict(extra)}")
    if is_final and truth.dead - dead:
        raise BrokenPromiseError(f"dead letters are missing: {dict(truth.dead - dead)}")


def _compare_junk(log: Log, junk: list[tuple[str, int]], *, is_final: bool) -> None:
    expected = [
        (topic, record.offset)
        for topic, records in ((NAMES.half, log.half), (NAMES.op, log.op))
        for record in records
        if isinstance(record, JunkRead)
    ]
    if len(set(junk)) < len(junk) or not set(junk) <= set(expected):
        raise BrokenPromiseError(f"junk was buried more than once: {sorted(junk)}")
    if is_final and len(junk) < len(expected):
        raise BrokenPromiseError(f"junk is missing: {sorted(set(expected) - set(junk))}")


def _compare_copies(log: Log, truth: Rulings, *, is_final: bool) -> None:
    """Each counted answer puts back a copy with its count; no copy counts more answers."""
    copied: dict[tuple[str, str, int], set[int]] = {}
    for half in log.half:
        if isinstance(half, HalfRead) and half.metadata.origin_offset >= 0:
            copied.setdefault(key_of(half), set()).add(half.metadata.check_times)
    for key, counts in copied.items():
        if max(counts) > truth.answers[key]:
            raise BrokenPromiseError(f"{key} was put back with {max(counts)} answers")
    for key, answers in truth.answers.items() if is_final else ():
        counted = set(range(1, min(answers, LEDGER.check_count_max - 1) + 1))
        if not counted <= copied.get(key, set()):
            raise BrokenPromiseError(
                f"{key} counted {answers} answers, its copies {copied.get(key)}"
            )


def _is_dead(truth: Rulings, name: str, group: str) -> bool:
    return any(f" {name} of {group} " in words for words in truth.dead)
