"""Fills an installation's topics with a million finished transactions, and with known defects.

Writes to half, op, real and dead-letter topics as client and daemon do: with their codecs, in
kafka_txns where the daemon writes, with the daemon's committed offsets. The offsets of a plain
producer's records follow from the order of writes, so every op can name its half.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Producer

from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA, OP
from halfbridge.serde.headers import DEAD, HALF, real_headers
from halfbridge.serde.progress import Progress
from halfbridge.serde.records import OpKind, OpSource
from tests.integration.installation import GROUP, Installation
from tests.kit.records import A_HALF, A_LETTER, AN_OP

PAIRS = 4
REAL_PARTITIONS = 4
KEYS = 1_000
BORN_MS = 1_700_000_000_000
KAFKA_TXN_RECORDS = 5_000  # as the daemon's batch_records_max
TIMEOUT_S = 120.0
QUEUE = 500_000
VALUE_BYTES = 200
# One transaction in DEFECT_EVERY has a defect of DEFECTS, in turn.
DEFECT_EVERY = 10_000
DEFECTS = ("lost", "duplicate", "mismatch", "conflict", "torn", "phantom")

Found = tuple[str, str]


class Mass:
    """Writes transactions, which are numbered from 0.

    Of each hundred, 90 have one message and are committed; two have two messages, two were put
    back first, one is discarded, three are rolled back and two undecided.

    Attributes:
        defects: (kind, transaction id) of each seeded defect.
        records: Topic -> number of records written.
    """

    def __init__(self, installation: Installation, value_bytes: int = VALUE_BYTES) -> None:
        self._names = installation.names
        self._orders = installation.real("orders")
        self._installation = installation
        self._value = b"v" * value_bytes
        self._count = 0
        self._at: Counter[tuple[str, int]] = Counter()
        self.defects: set[Found] = set()
        self.records: Counter[str] = Counter()

    def write(self, count: int, *, answers: int = 0) -> None:
        """Write `count` more: halves, then ops, then their outputs, then the daemon's offsets.

        `answers` is the number of late answers to checks of old transactions; they have no effect.
        """
        numbers = range(self._count, self._count + count)
        self._count += count
        plain = self._producer()
        lives = [self._halves(plain, number) for number in numbers]
        self._flush(plain)
        for number, last in zip(numbers, lives, strict=True):
            self._ops(plain, number, last)
        for number in range(0, answers * 100, 100):
            self._op(plain, number, 0, OpKind.UNKNOWN)
        self._flush(plain)
        self._outputs(numbers)
        for pair in range(PAIRS):
            half, op = self._at[self._names.half, pair], self._at[self._names.op, pair]
            progress = Progress(half=0, op=op, rebuild_to=half, ops_from=0, position=half)
            self._installation.set_committed(self._names.half, 0, "", partition=pair)
            self._installation.set_committed(
                self._names.op, op, progress.metadata(), partition=pair
            )

    # --- the properties of a transaction, by its number ------------------------------------

    def _defect(self, number: int) -> str:
        turn, rest = divmod(number, DEFECT_EVERY)
        kind = DEFECTS[turn % len(DEFECTS)]
        # A number whose transaction can have the defect: see _how.
        return kind if rest == {"torn": 91, "phantom": 96}.get(kind, 7) else ""

    def _how(self, number: int) -> str:
        rest = number % 100
        if rest < 90:
            return "one"
        if rest < 92:
            return "two"
        if rest < 94:
            return "put back"
        if rest == 94:
            return "discarded"
        return "rolled back" if rest < 98 else "undecided"

    def _indices(self, number: int) -> range:
        return range(2 if self._how(number) == "two" else 1)

    # --- records ---------------------------------------------------------------------------

    def _halves(self, producer: Producer, number: int) -> int:
        """Write the halves of a transaction; return the offset of the last."""
        offset = -1
        for index in self._indices(number):
            offset = self._half(producer, number, index, -1)
        if self._how(number) == "put back":
            self._half(producer, number, 0, offset)
        return offset

    def _half(self, producer: Producer, number: int, index: int, origin: int) -> int:
        headers = [("trace", b"%d" % index), (HALF, self._metadata(number, index, origin))]
        return self._send(
            producer, self._names.half, number % PAIRS, number, index, headers=headers
        )

    def _metadata(self, number: int, index: int, origin: int) -> bytes:
        return HALF_METADATA.encode(
            A_HALF._replace(
                transaction_id=f"{number:032x}",
                born_timestamp=BORN_MS,
                message_index=index,
                producer_group=GROUP,
                real_topic=self._orders,
                check_times=int(origin >= 0),
                first_append_timestamp=BORN_MS if origin >= 0 else -1,
                origin_offset=origin,
            )
        )

    def _ops(self, producer: Producer, number: int, last: int) -> None:
        how = self._how(number)
        if how == "undecided":
            return
        kind = {"rolled back": OpKind.ROLLBACK, "discarded": OpKind.DISCARD}
        self._op(producer, number, last, kind.get(how, OpKind.COMMIT))
        if self._defect(number) == "conflict":
            self.defects.add(("conflict", f"{number:032x}"))
            self._op(producer, number, last, OpKind.ROLLBACK)

    def _op(self, producer: Producer, number: int, last: int, kind: OpKind) -> None:
        discards = kind is OpKind.DISCARD
        op = AN_OP._replace(
            transaction_id=f"{number:032x}",
            timestamp=BORN_MS,
            half_offset=last,
            producer_group=GROUP,
            kind=kind,
            message_count=len(self._indices(number)),
            source=OpSource.CHECKER if discards else OpSource.PRODUCER,
            reason="CHECK_TIMES" if discards else "",
        )
        topic, pair = self._names.op, number % PAIRS
        key = f"{number:032x}".encode()
        self._produce(producer, topic, pair, key=key, value=OP.encode(op), headers=[])

    def _outputs(self, numbers: range) -> None:
        producer = self._producer(**{"transactional.id": f"{self._orders}-mass"})
        producer.init_transactions(TIMEOUT_S)
        for start in range(0, len(numbers), KAFKA_TXN_RECORDS):
            producer.begin_transaction()
            for number in numbers[start : start + KAFKA_TXN_RECORDS]:
                self._output(producer, number)
            producer.commit_transaction(TIMEOUT_S)

    def _output(self, producer: Producer, number: int) -> None:
        how, defect = self._how(number), self._defect(number)
        if defect:
            self.defects.add((defect, f"{number:032x}"))
        if how == "discarded":
            letter = A_LETTER._replace(
                check_times=15,
                decided_timestamp=BORN_MS,
                source_topic=self._names.half,
                source_partition=number % PAIRS,
            )
            headers = [("trace", b"0"), (HALF, self._metadata(number, 0, -1))]
            headers.append((DEAD, DEAD_LETTER.encode(letter)))
            self._send(producer, self._names.dead, 0, number, 0, headers=headers)
        elif how not in ("rolled back", "undecided") or defect == "phantom":
            for index in self._delivered(number, defect):
                self._deliver(producer, number, index, is_altered=defect == "mismatch")

    def _delivered(self, number: int, defect: str) -> Iterator[int]:
        if defect in ("lost", "torn"):
            yield from self._indices(number)[1:]
            return
        yield from self._indices(number)
        if defect == "duplicate":
            yield 0

    def _deliver(self, producer: Producer, number: int, index: int, *, is_altered: bool) -> None:
        headers = real_headers([("trace", b"%d" % index)], f"{number:032x}", BORN_MS)
        partition = number % KEYS % REAL_PARTITIONS
        self._send(
            producer, self._orders, partition, number, index, headers=headers, flip=is_altered
        )

    def _send(
        self,
        producer: Producer,
        topic: str,
        partition: int,
        number: int,
        index: int,
        *,
        headers: list[tuple[str, bytes | None]],
        flip: bool = False,
    ) -> int:
        value = b"%d-%d-%b" % (number, index, self._value)
        if flip:
            value = value[:-1] + bytes([value[-1] ^ 1])
        key = b"key-%d" % (number % KEYS)
        return self._produce(producer, topic, partition, key=key, value=value, headers=headers)

    def _produce(
        self,
        producer: Producer,
        topic: str,
        partition: int,
        *,
        key: bytes,
        value: bytes,
        headers: list[Any],
    ) -> int:
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
        self.records[topic] += 1
        self._at[topic, partition] += 1
        return self._at[topic, partition] - 1

    def _producer(self, **more: str) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._installation.servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "queue.buffering.max.messages": QUEUE,
                "batch.size": 1_000_000,
                "compression.type": "lz4",
                **more,
            }
        )

    @staticmethod
    def _flush(producer: Producer) -> None:
        assert producer.flush(TIMEOUT_S) == 0, "not everything was acknowledged"
