"""A client that may write to half and op topic and means no good: each record of a shape drawn."""

import uuid
from random import Random
from typing import Any

from confluent_kafka import Producer

from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import CONTEXT, DEAD, HALF
from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import OpKind
from halfbridge.serde.topics import TopicNames
from tests.kit.records import A_HALF, AN_OP

# What one record may take, so that fifty a second are some megabytes a second.
LARGE_BYTES = 900_000
MEDIUM_BYTES = 100_000
INFLATED_BYTES = 5_000_000
_FAR = 1 << 40
_GROUPS = 40  # invented ones, drawn again and again
_NAMES = 40
_QUEUE_KIB = 100_000


class Hostile:
    """Writes records of every shape that is known to have done harm.

    Args:
        servers: The cluster.
        names: The installation's topics.
        partitions: Of half and op topic.
        random: Draws.
        orders: A real topic that good transactions use too.
        small: A real topic that takes next to nothing.
    """

    def __init__(
        self,
        servers: str,
        names: TopicNames,
        *,
        partitions: int,
        random: Random,
        orders: str,
        small: str,
    ) -> None:
        self._names = names
        self._partitions = partitions
        self._random = random
        self._orders = orders
        self._small = small
        common = {
            "bootstrap.servers": servers,
            "message.max.bytes": 10 * INFLATED_BYTES,
            "queue.buffering.max.kbytes": _QUEUE_KIB,
        }
        self._plain = Producer(common)
        self._packed = Producer({**common, "compression.type": "zstd"})
        self.shapes = {
            shape.__name__.strip("_"): shape
            for shape in (
                self._junk_op,
                self._large_junk_op,
                self._junk_half,
                self._large_metadata,
                self._long_name,
                self._inflated,
                self._no_header,
                self._op_beyond_the_end,
                self._missing_topic,
                self._missing_partition,
                self._internal_topic,
                self._too_large_for_its_topic,
                self._large_incomplete,
                self._excess_index,
                self._undecided_of_a_group_that_nobody_is,
                self._forged_copy,
                self._reserved_header,
                self._long_context,
                self._orphan_and_conflict,
                self._lines_in_an_id,
                self._forged_discard,
            )
        }
        self.written = 0
        self.refused = 0

    def write(self) -> str:
        """Append one draw; return its shape."""
        name = self._random.choice(sorted(self.shapes))
        self.shapes[name]()
        self._plain.poll(0)
        self._packed.poll(0)
        return name

    def flush(self) -> None:
        """Wait for what is on its way."""
        self._plain.flush(30)
        self._packed.flush(30)

    # --- shapes ----------------------------------------------------------------------------

    def _junk_op(self) -> None:
        head = b"\xc3\x01" + OP.fingerprint
        self._append(self._names.op, head + self._bytes(self._random.randrange(5_000)))

    def _large_junk_op(self) -> None:
        head = b"\xc3\x01" + OP.fingerprint
        self._append(self._names.op, head + b"\xff" * self._random.randrange(LARGE_BYTES))

    def _junk_half(self) -> None:
        self._append(self._names.half, b"v", headers=[(HALF, self._bytes(200))])

    def _large_metadata(self) -> None:
        head = b"\xc3\x01" + HALF_METADATA.fingerprint
        value = head + b"\xff" * self._random.randrange(MEDIUM_BYTES)
        self._append(self._names.half, b"v", headers=[(HALF, value)])

    def _long_name(self) -> None:
        self._half(real_topic="t" * self._random.randrange(1, MEDIUM_BYTES))

    def _inflated(self) -> None:
        topic = self._random.choice((self._names.half, self._names.op))
        value = b"\0" * self._random.randrange(INFLATED_BYTES)
        self._append(topic, value, producer=self._packed)

    def _no_header(self) -> None:
        self._append(self._names.half, self._bytes(self._random.randrange(2_000)))

    def _op_beyond_the_end(self) -> None:
        self._op(self._half(), OpKind.COMMIT, half_offset=_FAR)

    def _missing_topic(self) -> None:
        name = f"missing-{self._random.randrange(_NAMES)}"
        self._commit(self._half(real_topic=name))

    def _missing_partition(self) -> None:
        self._commit(self._half(real_partition=self._random.randrange(100, 1_000)))

    def _internal_topic(self) -> None:
        self._commit(self._half(real_topic=self._names.op))

    def _too_large_for_its_topic(self) -> None:
        size = self._random.randrange(10_000, MEDIUM_BYTES)
        self._commit(self._half(real_topic=self._small, value=self._bytes(size)))

    def _large_incomplete(self) -> None:
        half = self._half(value=self._bytes(self._random.randrange(LARGE_BYTES)))
        self._commit(half, message_count=2)

    def _excess_index(self) -> None:
        half = self._half()
        partition = half[1]
        for _ in range(3):
            index = self._random.randrange(TRANSACTION_MESSAGES_MAX, 1 << 31)
            self._half(half[0], partition=partition, message_index=index)
        self._commit(half)

    def _undecided_of_a_group_that_nobody_is(self) -> None:
        self._half(producer_group=f"invented-{self._random.randrange(_GROUPS)}")

    def _forged_copy(self) -> None:
        self._half(origin_offset=0, first_append_timestamp=1, check_times=14)

    def _reserved_header(self) -> None:
        self._commit(self._half(headers=[(DEAD, b"1")]))

    def _long_context(self) -> None:
        self._half(headers=[(CONTEXT, self._bytes(self._random.randrange(MEDIUM_BYTES)))])

    def _orphan_and_conflict(self) -> None:
        half = self._half()
        self._op(half, OpKind.ROLLBACK)
        self._commit(half)
        self._commit((uuid.uuid4().hex, half[1]))

    def _lines_in_an_id(self) -> None:
        identity = f"{uuid.uuid4().hex}\n2026-01-01 CRITICAL forged\n"
        self._commit(self._half(identity))
        self._commit((identity, 0))

    def _forged_discard(self) -> None:
        self._op(self._half(), OpKind.DISCARD, reason="x" * 3_000)

    # --- how they are written --------------------------------------------------------------

    def _half(
        self,
        transaction_id: str = "",
        *,
        value: bytes = b"v",
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        **given: Any,
    ) -> tuple[str, int]:
        identity = transaction_id or uuid.uuid4().hex
        partition = self._random.randrange(self._partitions) if partition is None else partition
        values = {"producer_group": "hostile", "real_topic": self._orders, **given}
        metadata = A_HALF._replace(transaction_id=identity, born_timestamp=1, **values)
        mine = (HALF, HALF_METADATA.encode(metadata))
        self._append(self._names.half, value, headers=[*(headers or ()), mine], partition=partition)
        return identity, partition

    def _commit(self, half: tuple[str, int], **given: Any) -> None:
        self._op(half, OpKind.COMMIT, **given)

    def _op(self, half: tuple[str, int], kind: OpKind, **given: Any) -> None:
        values = {"producer_group": "hostile", "message_count": 1, "kind": kind, **given}
        op = AN_OP._replace(transaction_id=half[0], timestamp=1, **values)
        self._append(self._names.op, OP.encode(op), partition=half[1])

    def _append(
        self,
        topic: str,
        value: bytes,
        *,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        producer: Producer | None = None,
    ) -> None:
        partition = self._random.randrange(self._partitions) if partition is None else partition
        (producer or self._plain).produce(
            topic, value, partition=partition, headers=headers or [], on_delivery=self._count
        )

    def _count(self, error: object, _message: object) -> None:
        self.refused += error is not None
        self.written += error is None

    def _bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)
