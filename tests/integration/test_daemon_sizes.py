"""Records of every size and shape that a topic takes: none of them holds up the good ones.

Each trigger stopped a worker for good: its dead letter, or its copy, was refused for its size,
and the same plan was made again and again.
"""

import os
import uuid
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer

from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import DEAD, HALF
from halfbridge.serde.limits import (
    METADATA_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
)
from halfbridge.serde.records import DeadReason, OpKind
from tests.integration.installation import GROUP, Installation
from tests.integration.tail import Record, Stored
from tests.kit.waiting import CALL_S, until

pytestmark = pytest.mark.broker

MEBIBYTE = 1024 * 1024
GOOD = 40
# One or two before brokers have reported the topics' limits, or while records are sent in smaller
# batches; without what is learned there would be one with each such record, and no end.
KAFKA_TXN_FAILURES_MAX = 6


def _write_compressed(installation: Installation, topic: str, value: bytes, **given: Any) -> None:
    """Append a record that its topic takes only because it is small when it is compressed."""
    producer = Producer(
        {
            "bootstrap.servers": installation.servers,
            "compression.type": "zstd",
            "message.max.bytes": 100_000_000,
        }
    )
    failed: list[object] = []
    producer.produce(
        topic, value, partition=0, on_delivery=lambda error, _: failed.append(error), **given
    )
    assert producer.flush(CALL_S) == 0
    assert failed == [None]


class Hostile:
    """Writes what stopped a worker, each kind once; says which dead letters must come of it."""

    def __init__(self, installation: Installation, orders: str) -> None:
        self.installation = installation
        self.orders = orders
        self.half, self.op = installation.names.half, installation.names.op
        self.wanted: Counter[DeadReason] = Counter()

    def write_all(self) -> None:
        """Append one of each kind."""
        for write in (
            self.ops_of_invalid_text,
            self.long_metadata,
            self.a_long_topic_name,
            self.compressed_junk,
            self.nearly_full_half_messages,
            self.a_large_incomplete_transaction,
            self.too_many_messages,
            self.too_many_bytes,
            self.a_copy_that_is_too_long,
        ):
            write()
            self.installation.pass_through(self.orders)

    def ops_of_invalid_text(self) -> None:
        """Their error quotes them fourfold."""
        head = b"\xc3\x01" + OP.fingerprint
        self.installation.write(self.op, head + b"\x80\x9f\x09" + b"\xff" * 250_000)
        self.installation.write(self.op, head + b"\xff" * (MEBIBYTE - 2_000))
        self.wanted[DeadReason.INVALID] += 2

    def long_metadata(self) -> None:
        """RMQ_HALF as large as a record may be, and one byte longer than is read."""
        head = b"\xc3\x01" + HALF_METADATA.fingerprint
        for size in (250_000, MEBIBYTE - 2_000):
            self.installation.write(self.half, b"v", headers=[(HALF, head + b"\xff" * size)])
        longest = self.installation.half_header("t" * (METADATA_BYTES_MAX - 90), uuid.uuid4().hex)
        padded = self.installation.half_header(
            "t" * (2 * METADATA_BYTES_MAX - 90 - len(longest) + 1), uuid.uuid4().hex
        )
        assert len(padded) == METADATA_BYTES_MAX + 1
        self.installation.write(self.half, b"v", headers=[(HALF, padded)])
        self.wanted[DeadReason.INVALID] += 3

    def a_long_topic_name(self) -> None:
        """Repeated in the detail, the record and its letter are as large as two of them."""
        self.installation.half("t" * 620_000)
        self.wanted[DeadReason.INVALID] += 1

    def compressed_junk(self) -> None:
        """The daemon writes what it read as it was before it was compressed."""
        _write_compressed(self.installation, self.half, b"\0" * (5 * MEBIBYTE))
        _write_compressed(self.installation, self.op, b"\0" * (5 * MEBIBYTE))
        self.wanted[DeadReason.INVALID] += 2

    def nearly_full_half_messages(self) -> None:
        """A letter of each is larger by RMQ_DEAD."""
        for _ in range(2):
            stored = self._half(self._room(100))
            self.installation.commit(stored, message_count=2)
        self.wanted[DeadReason.INCOMPLETE] += 2

    def a_large_incomplete_transaction(self) -> None:
        """The half topic takes more than the dead-letter topic does."""
        self.installation.commit(self._half(4 * MEBIBYTE), message_count=2)
        self.wanted[DeadReason.INCOMPLETE] += 1

    def too_many_messages(self) -> None:
        """One more than a transaction may have: the answer to a check covers all there are."""
        identity = uuid.uuid4().hex
        last: Stored | None = None
        for index in (0, 1, 2, TRANSACTION_MESSAGES_MAX, TRANSACTION_MESSAGES_MAX + 1):
            last = self.installation.half(self.orders, identity, message_index=index)
        assert last is not None
        self.installation.commit(last, message_count=-1)
        self.wanted[DeadReason.TOO_LARGE] += 5

    def too_many_bytes(self) -> None:
        """Three messages that are one byte too large together."""
        identity = uuid.uuid4().hex
        sizes = [TRANSACTION_BYTES_MAX // 3, TRANSACTION_BYTES_MAX // 3]
        sizes.append(TRANSACTION_BYTES_MAX - sum(sizes) - 3 * len(b"key") + 1)
        last: Stored | None = None
        for index, size in enumerate(sizes):
            last = self.installation.half(
                self.orders, identity, value=b"v" * size, message_index=index
            )
        assert last is not None
        self.installation.commit(last, message_count=3)
        self.wanted[DeadReason.TOO_LARGE] += 3

    def a_copy_that_is_too_long(self) -> None:
        """A half message as long as its topic takes: the copy of a counted answer is longer."""
        self.installation.answer_unknown(self._half(self._room(0)), check_number=1)
        self.wanted[DeadReason.TOO_LARGE] += 1

    def _half(self, size: int) -> Stored:
        return self.installation.half(self.orders, value=os.urandom(size), key=None)

    def _room(self, left: int) -> int:
        """Return the longest value of a half message for which `left` bytes are left over."""
        header = len(self.installation.half_header(self.orders, uuid.uuid4().hex))
        frame = 61 + 4 + 3 + 1 + 4 + 1 + 1 + len(HALF) + 2 + header
        return self.half_bytes_max - frame - left

    half_bytes_max = 0


def _reasons(letters: list[Record]) -> Counter[DeadReason]:
    return Counter(each.dead.reason for each in letters)


@pytest.mark.parametrize(
    ("half_bytes_max", "dead_bytes_max"),
    [(5 * MEBIBYTE, MEBIBYTE + 131_072), (5 * MEBIBYTE, 100_000), (5 * MEBIBYTE, 6 * MEBIBYTE)],
    ids=["half topic raised", "dead-letter topic lowered", "both raised"],
)
def test_no_size_holds_up_the_good_transactions(
    installation: Installation, half_bytes_max: int, dead_bytes_max: int
) -> None:
    """All that is bad becomes a dead letter or a stub, once, and all that is good is delivered."""
    installation.make()
    names = installation.names
    orders = installation.topic("orders", max_message_bytes=str(5 * MEBIBYTE))
    installation.alter(names.half, max_message_bytes=str(half_bytes_max))
    installation.alter(names.op, max_message_bytes=str(half_bytes_max))
    installation.alter(names.dead, max_message_bytes=str(dead_bytes_max))
    hostile = Hostile(installation, orders)
    hostile.half_bytes_max = half_bytes_max
    good = [installation.pass_through(orders).transaction_id for _ in range(GOOD)]
    hostile.write_all()
    good += [installation.pass_through(orders).transaction_id for _ in range(GOOD)]

    daemon = installation.start()
    letters = installation.dead(sum(hostile.wanted.values()))
    installation.await_marker()  # a DISCARD that its batch wrote comes before the markers

    assert _reasons(installation.dead_letters()) == hostile.wanted
    delivered = Counter(each.transaction_id for each in installation.delivered(orders))
    assert all(delivered[each] == 1 for each in good)
    assert len(delivered) == delivered.total() == len(good) + 9
    stubs = [each for each in letters if each.dead.is_stub]
    assert all((each.key, each.value) == (None, None) for each in stubs)
    assert all(len(each.value or b"") <= dead_bytes_max for each in letters)
    daemon.counts("halfbridge_dead_letter_stubs_total", len(stubs))
    assert daemon.metric("halfbridge_kafka_txn_failures_total") <= KAFKA_TXN_FAILURES_MAX
    assert daemon.healthz()[0] == (200 if dead_bytes_max > half_bytes_max else 503)


def test_sizes_are_learned_where_brokers_do_not_say(installation: Installation) -> None:
    """A limit that was lowered after it was asked for is found out by a few failed kafka_txns."""
    installation.make()
    orders = installation.topic("orders")
    small = installation.topic("small")
    daemon = installation.start()
    installation.pass_through(orders)
    refused_once = installation.half(small, value=b"v")
    installation.commit(refused_once)
    installation.await_marker()
    installation.alter(installation.names.dead, max_message_bytes="10000")
    installation.alter(small, max_message_bytes="10000")

    large = installation.half(small, value=os.urandom(20_000))
    installation.commit(large)
    incomplete = installation.half(orders, value=os.urandom(30_000))
    installation.commit(incomplete, message_count=2)
    good = installation.pass_through(orders)
    letters = installation.dead(2)
    installation.await_marker()

    assert {(each.half.transaction_id, each.dead.reason) for each in letters} == {
        (large.transaction_id, DeadReason.UNDELIVERABLE),
        (incomplete.transaction_id, DeadReason.INCOMPLETE),
    }
    assert all(each.dead.is_stub for each in letters)
    assert good.transaction_id in {
        each.transaction_id for each in installation.tail(orders).to_end()
    }
    failures = daemon.metric("halfbridge_kafka_txn_failures_total")
    assert 0 < failures <= KAFKA_TXN_FAILURES_MAX


def test_a_stub_leads_to_its_record(installation: Installation) -> None:
    """Topic, partition and offset are those of the half record, which still has the body."""
    installation.make()
    orders = installation.topic("orders")
    installation.alter(installation.names.dead, max_message_bytes="10000")
    value = os.urandom(20_000)
    half = installation.half(orders, value=value, producer_group=GROUP)
    installation.start()
    installation.op(OpKind.COMMIT, half, message_count=2)
    (stub,) = installation.dead(1)
    assert [name for name, _ in stub.headers] == [HALF, DEAD]
    assert stub.half.transaction_id == half.transaction_id
    assert (stub.dead.source_topic, stub.dead.source_offset) == (
        installation.names.half,
        half.offset,
    )
    tail = installation.tail(installation.names.half)
    until("the half topic is read", lambda: tail.to_end() and tail.records)
    assert tail.records[stub.dead.source_offset].value == value
