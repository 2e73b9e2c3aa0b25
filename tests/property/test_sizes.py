"""For any sizes of records and limits of topics, every good transaction is delivered.

The worker's own Pair, Collector, Blame, Routes, Sizes and Publisher read a log that is drawn, and
write to topics whose limits are drawn. What brokers say of these limits may be nothing, or old.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.assignment import ledger_settings
from halfbridge.checker.loop.blame import Blame, SendSize
from halfbridge.checker.loop.collector import Collector
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.pair import Pair, restore_plan
from halfbridge.checker.loop.publish import Publisher, Sizes
from halfbridge.checker.loop.routes import Routes
from halfbridge.checker.loop.topic_watch import TopicWatch
from halfbridge.checker.policy import Policy
from halfbridge.checker.status import Status
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.kafka.ports import SeenTopic
from halfbridge.kafka.threads import SystemClock
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA, OP
from halfbridge.serde.headers import DEAD, HALF
from halfbridge.serde.limits import STUB_BYTES_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.progress import START, Progress
from halfbridge.serde.record_size import bytes_alone
from halfbridge.serde.records import OpKind, OpSource, new_half, new_op
from halfbridge.serde.topics import TopicNames
from tests.kit.examples import given, st
from tests.property import strategies as some

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.checker.loop.publish import Outgoing

NAMES = TopicNames()
MEBIBYTE = 1024 * 1024
BODIES_BYTES = 4 * MEBIBYTE
RECORD_BYTES_MAX = 10 * MEBIBYTE + 1_000
REAL = ("orders", "small")
TURNS_MAX = 400
# Of one topic that refuses a size, and one unknown limit: two kafka_txns until each record goes
# alone, one that tells, and of dead letters one for each halving down to a stub, ten.
FAILURES_A_SIZE = 13
# What a client's batch holds at most: librdkafka's batch.size, and the daemon's smaller ones.
_BATCH_BYTES = {SendSize.USUAL: 1_000_000, SendSize.SMALL: 32 * 1024, SendSize.ONE_RECORD: 0}


class Message:
    """A record as the Kafka client hands it over; its bytes are made when they are asked for."""

    def __init__(
        self, topic: str, offset: int, size: int, headers: list[tuple[str, bytes | None]]
    ) -> None:
        self._topic, self._offset, self._size, self._headers = topic, offset, size, headers
        self.data: bytes | None = None

    def __len__(self) -> int:
        return self._size if self.data is None else len(self.data)

    def topic(self) -> str:
        """Return its topic."""
        return self._topic

    def offset(self) -> int:
        """Return its offset."""
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """Return LogAppendTime."""
        return 2, 1_000_000 + self._offset

    def key(self) -> None:
        """Return no key."""

    def value(self) -> bytes | None:
        """Return what it was given, or so many zeros."""
        return bytes(self._size) if self.data is None else self.data

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Return its headers."""
        return self._headers


@dataclass
class Cluster:
    """A half and an op partition, and what was written to other topics.

    Attributes:
        takes: Topic -> the largest batch that it takes.
        written: The records of other topics.
    """

    takes: dict[str, int]
    half: list[Message] = field(default_factory=list)
    op: list[Message] = field(default_factory=list)
    written: list[Outgoing] = field(default_factory=list)

    def topics(self) -> dict[str, SeenTopic]:
        """Return the topics that there are."""
        return dict.fromkeys((*REAL, NAMES.half, NAMES.op, NAMES.dead), SeenTopic(1, 1))

    def may_write(self, topics: Iterable[str]) -> dict[str, bool]:
        """Tell that every right is there."""
        return dict.fromkeys(topics, True)

    def read(self, offsets: Iterable[int]) -> dict[int, Message]:
        """Return half records by offset."""
        return {offset: self.half[offset] for offset in offsets}

    def write(self, records: Iterable[Outgoing], batch: SendSize) -> None:
        """Write a kafka_txn.

        Raises:
            KafkaTxnFailedError: a topic does not take what was sent to it at once.
        """
        pending: Counter[str] = Counter()
        done: list[Outgoing] = []
        for record in records:
            size = bytes_alone(record.key, record.value, record.headers)
            alone = pending[record.topic] + size > _BATCH_BYTES[batch]
            pending[record.topic] = size if alone else pending[record.topic] + size
            if pending[record.topic] > self.takes[record.topic]:
                failure = KafkaFailure(Code.MSG_SIZE_TOO_LARGE)
                raise KafkaTxnFailedError("too large", failure, topic=record.topic)
            done.append(record)
        for record in done:
            if record.topic in (NAMES.half, NAMES.op):
                self.append(record.topic, record.value, record.headers)
            else:
                self.written.append(record)

    def append(
        self, topic: str, value: bytes | int | None, headers: list[tuple[str, bytes | None]]
    ) -> int:
        """Append a record to half or op partition and return its offset."""
        log = self.half if topic == NAMES.half else self.op
        message = Message(topic, len(log), value if isinstance(value, int) else 0, headers)
        message.data = None if isinstance(value, int) else value
        log.append(message)
        return len(log) - 1


class Daemon:
    """The parts of a worker that decide, around a cluster that is a list."""

    def __init__(self, cluster: Cluster, reported: dict[str, int]) -> None:
        nobody: Any = None
        self.cluster = cluster
        config = CheckerConfig(ledger_bytes_max=BODIES_BYTES, batch_bytes_max=MEBIBYTE)
        self.routes = Routes(0)
        self.sizes = Sizes(reported.get)
        self.blame = Blame(
            NAMES, self.routes, self.sizes, nobody, limit_max=config.batch_records_max
        )
        topics = TopicWatch(
            cast("Any", cluster), self.routes, config, Status(), clock=SystemClock()
        )
        topics.refresh(0.0)
        self.collector = Collector(
            config, blame=self.blame, topics=topics, reporter=cast("Any", _Silent())
        )
        self.settings = ledger_settings(config, Policy(), self.sizes, actor="w")
        self.progress = START
        self.failures = 0
        self.begin()

    def begin(self) -> None:
        """Restart from the committed offsets."""
        publisher = Publisher(NAMES, 0, self.routes, self.sizes)
        self.pair = Pair(0, self.settings, self.progress, publisher, began=0.0)
        self.half_at, self.op_at = self.progress.half, self.progress.ops_from

    def turn(self) -> bool:
        """Read what there is, write one kafka_txn; tell whether anything was done."""
        pair, cluster = self.pair, self.cluster
        read = len(cluster.half) - self.half_at + len(cluster.op) - self.op_at
        # One record after the other, as far as the pair takes more: what a worker fetches at once
        # is bounded by the client.
        while self.half_at < len(cluster.half) and pair.takes_halves(is_paused=False):
            pair.add_half(cluster.half[self.half_at], 0.0)
            self.half_at += 1
        while self.op_at < len(cluster.op) and pair.takes_ops(is_paused=False):
            pair.add_op(cluster.op[self.op_at], 0.0)
            self.op_at += 1
        batch = self.collector.collect({0: pair}, 1.0)
        if not batch.pairs:
            return bool(read)
        plan = batch.plans[0]
        restore_plan(plan, cluster.read)
        records = pair.publisher.records(plan, 1).records
        self.blame.watch(records)
        before = len(cluster.half)
        try:
            cluster.write(records, self.blame.send_size)
        except KafkaTxnFailedError as error:
            self.failures += 1
            self.blame.failed(error, {0: plan}, 0)
            self.begin()
            return True
        copies_end = len(cluster.half) if len(cluster.half) > before else 0
        pair.held = None
        self.progress = pair.committed = pair.ledger.progress(copies_end)
        pair.ledger.committed(self.progress)
        self.blame.succeeded({0: plan})
        return bool(plan.records or read)


class _Silent:
    """Discard the progress."""

    def written(self, *_: object, **__: object) -> None:
        """Say nothing."""


# --- the records of the log ----------------------------------------------------------------

_sizes = st.one_of(
    st.integers(0, 2_000),
    st.integers(0, 200_000),
    st.integers(900_000, 1_200_000),
    st.integers(0, 10 * MEBIBYTE),
)
_shape = st.one_of(
    st.tuples(st.just("good"), st.just(0)),
    st.tuples(st.just("good"), st.just(0)),
    st.tuples(
        st.sampled_from(
            (
                "junk half",
                "junk op",
                "long metadata",
                "incomplete",
                "large delivery",
                "large for the small topic",
                "three large",
                "excess",
                "answered",
                "rolled back",
                "not allowed",
            )
        ),
        _sizes,
    ),
)
_limits = st.sampled_from((STUB_BYTES_MAX + 2_000, 100_000, MEBIBYTE, 5 * MEBIBYTE, 20 * MEBIBYTE))


class Writer:
    """Writes what is drawn; `good` are the transactions that must be delivered."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.good: list[str] = []
        self.count = 0

    def write(self, shape: str, size: int) -> None:
        """Append one transaction or record of a shape."""
        getattr(self, "_" + shape.replace(" ", "_"))(size)

    def _good(self, _size: int) -> None:
        identity, at = self._half(10)
        self._op(identity, at, OpKind.COMMIT)
        self.good.append(identity)

    def _junk_half(self, size: int) -> None:
        self.cluster.append(NAMES.half, size, [("n", b"1")])

    def _junk_op(self, size: int) -> None:
        self.cluster.append(NAMES.op, size, [])

    def _long_metadata(self, size: int) -> None:
        head = b"\xc3\x01" + HALF_METADATA.fingerprint
        self.cluster.append(NAMES.half, 1, [(HALF, head + bytes(size))])

    def _incomplete(self, size: int) -> None:
        identity, at = self._half(size)
        self._op(identity, at, OpKind.COMMIT, message_count=2)

    def _large_delivery(self, size: int) -> None:
        identity, at = self._half(size)
        self._op(identity, at, OpKind.COMMIT)

    def _large_for_the_small_topic(self, size: int) -> None:
        identity, at = self._half(size, real_topic="small")
        self._op(identity, at, OpKind.COMMIT)

    def _three_large(self, size: int) -> None:
        identity, at = self._half(size)
        for index in (1, 2):
            _, at = self._half(size, identity, message_index=index)
        self._op(identity, at, OpKind.COMMIT, message_count=3)

    def _excess(self, size: int) -> None:
        identity, at = self._half(size)
        for index in range(3):
            _, at = self._half(5, identity, message_index=TRANSACTION_MESSAGES_MAX + index)
        self._op(identity, at, OpKind.COMMIT, message_count=-1)

    def _answered(self, size: int) -> None:
        identity, at = self._half(size)
        self._op(identity, at, OpKind.UNKNOWN, check_number=1, source=OpSource.CHECK)

    def _rolled_back(self, size: int) -> None:
        identity, at = self._half(size)
        self._op(identity, at, OpKind.ROLLBACK)

    def _not_allowed(self, size: int) -> None:
        identity, at = self._half(size, real_topic=NAMES.dead)
        self._op(identity, at, OpKind.COMMIT)

    def _half(self, size: int, identity: str = "", **given: Any) -> tuple[str, int]:
        if not identity:
            self.count += 1
            identity = f"{self.count:032x}"
        reported = new_half(
            transaction_id=identity, born_timestamp=1, producer_group="orders", real_topic="orders"
        )
        header = (HALF, HALF_METADATA.encode(reported._replace(**given)))
        return identity, self.cluster.append(NAMES.half, size, [header])

    def _op(self, identity: str, at: int, kind: OpKind, **given: Any) -> None:
        op = new_op(
            transaction_id=identity,
            timestamp=1,
            half_offset=at,
            producer_group="orders",
            kind=kind,
            message_count=1,
            source=OpSource.PRODUCER,
            actor="a",
        )
        self.cluster.append(NAMES.op, OP.encode(op._replace(**given)), [])


@some.PROFILE
@given(
    shapes=st.lists(_shape, min_size=1, max_size=25),
    takes=st.fixed_dictionaries({"small": _limits, NAMES.dead: _limits, NAMES.half: _limits}),
    reported=st.sampled_from(("all", "nothing", "before it was lowered")),
)
def test_every_good_transaction_is_delivered(
    shapes: list[tuple[str, int]], takes: dict[str, int], reported: str
) -> None:
    """Once, after a bounded number of failed kafka_txns, with memory within the budget."""
    real = {"orders": 20 * MEBIBYTE, NAMES.op: MEBIBYTE, **takes}
    cluster = Cluster(real)
    before = {topic: 10 * limit for topic, limit in real.items()}
    says = {"all": real, "nothing": {}, "before it was lowered": before}[reported]
    writer = Writer(cluster)
    for shape, size in shapes:
        writer.write(shape, size)
    writer.write("good", 0)
    daemon = Daemon(cluster, says)

    for turn in range(TURNS_MAX):
        if not daemon.turn() and turn > 1:
            break
        daemon.pair.keep_bodies(is_written=False)
        held = daemon.pair.bodies_bytes
        assert held <= BODIES_BYTES + RECORD_BYTES_MAX, held

    delivered = Counter(
        dict(each.headers)["__transactionId__"] for each in cluster.written if each.topic in REAL
    )
    assert all(delivered[identity.encode()] == 1 for identity in writer.good)
    assert set(delivered.values()) <= {1, 3}  # messages of a transaction, all or none
    refused_sizes = 0 if reported == "all" else len(shapes) + 2
    assert daemon.failures <= 2 + FAILURES_A_SIZE * refused_sizes
    _check_letters(cluster)
    assert daemon.progress.op == len(cluster.op)


def _check_letters(cluster: Cluster) -> None:
    """Nothing is dead-lettered twice, and a stub leads to its record."""
    places: Counter[tuple[str, int]] = Counter()
    for each in cluster.written:
        if each.topic != NAMES.dead:
            continue
        letter = DEAD_LETTER.decode(dict(each.headers)[DEAD] or b"")
        places[letter.source_topic, letter.source_offset] += 1
        log = cluster.half if letter.source_topic == NAMES.half else cluster.op
        if not letter.is_stub:
            assert each.value == log[letter.source_offset].value()
    assert set(places.values()) <= {1}


def test_a_transaction_of_the_largest_size_is_delivered() -> None:
    """Eight mebibytes in 1,000 messages are what a client may send; no limit of ours refuses it."""
    cluster = Cluster(dict.fromkeys((*REAL, NAMES.half, NAMES.op, NAMES.dead), 20 * MEBIBYTE))
    writer = Writer(cluster)
    share = TRANSACTION_BYTES_MAX // TRANSACTION_MESSAGES_MAX
    rest = TRANSACTION_BYTES_MAX - share * TRANSACTION_MESSAGES_MAX
    half = partial(writer._half)
    identity, at = half(share + rest)
    for index in range(1, TRANSACTION_MESSAGES_MAX):
        _, at = half(share, identity, message_index=index)
    writer._op(identity, at, OpKind.COMMIT, message_count=TRANSACTION_MESSAGES_MAX)
    daemon = Daemon(cluster, {})
    while daemon.turn():
        pass
    assert len(cluster.written) == TRANSACTION_MESSAGES_MAX
    assert {each.topic for each in cluster.written} == {"orders"}
    assert daemon.progress == Progress(1_000, 1, 1_000, 0, 1_000)
