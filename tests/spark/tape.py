"""An installation's topics as rows of Kafka's schema, written with serde's own codecs.

No broker: offsets are the places in the lists, append times a counter. A snapshot says that all of
it was read and applied, unless a test says otherwise.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from halfbridge.serde import headers as names
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA, OP
from halfbridge.serde.records import DeadReason, HalfMetadata, Op, OpKind
from halfbridge.serde.topics import TopicNames
from halfbridge.spark_jobs.audit.bounds import Bounds
from halfbridge.spark_jobs.audit.facts import (
    all_facts,
    facts_of_dead_letters,
    facts_of_halves,
    facts_of_ops,
    facts_of_reals,
)
from halfbridge.spark_jobs.reading.offsets import Range, Snapshot
from halfbridge.spark_jobs.reading.topics import KAFKA_SCHEMA, LOG_APPEND_TIME
from tests.kit.records import A_HALF, A_LETTER, AN_OP

GROUP = "orders-service"
ORDERS = "orders"
BORN_MS = 1_699_999_999_000
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
PAIRS = 2
NAMES = TopicNames()
DAEMONS = (names.TRANSACTION_ID, names.BORN_TIMESTAMP, names.MESSAGE_INDEX)  # headers that it adds
# Real topic, key, value, the user's headers.
Content = tuple[str, Any, Any, tuple[Any, ...]]


@dataclass(frozen=True)
class Half:
    """A half record that was written."""

    at: int
    pair: int
    ms: int
    metadata: HalfMetadata
    key: bytes | None
    value: bytes | None
    user: tuple[tuple[str, bytes | None], ...]

    @property
    def txn(self) -> str:
        """Its transaction id."""
        return self.metadata.transaction_id

    @property
    def origin(self) -> int:
        """Offset of the original."""
        return self.at if self.metadata.origin_offset < 0 else self.metadata.origin_offset


class Tape:
    """Everything that was written so far."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], list[tuple[Any, ...]]] = defaultdict(list)
        self.clock_ms = START_MS
        self.timestamp_type = LOG_APPEND_TIME
        self.cut: dict[tuple[str, int], int] = {}
        # The first partition that is written to. Logs that share nothing have partitions of their
        # own.
        self.lane = 0
        self._count = 0

    @contextmanager
    def create_time(self, days: int = 0) -> Iterator[None]:
        """Write records whose times are their writers', with a clock that is `days` ahead."""
        before_ms, self.timestamp_type = self.clock_ms, 0
        self.clock_ms += days * DAY_MS
        yield
        self.clock_ms, self.timestamp_type = before_ms + 1, LOG_APPEND_TIME

    def new_id(self) -> str:
        self._count += 1
        return f"{self._count:032x}"

    def write(
        self,
        topic: str,
        partition: int,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> int:
        """Append any record; return its offset."""
        self.clock_ms += 1
        rows = self.rows[topic, partition]
        time = datetime.fromtimestamp(self.clock_ms / 1000, timezone.utc)
        given = list(headers) if headers is not None else None
        rows.append((key, value, topic, partition, len(rows), time, self.timestamp_type, given))
        return len(rows) - 1

    def half(
        self,
        txn: str | None = None,
        *,
        pair: int | None = None,
        key: bytes | None = b"key",
        value: bytes | None = b"value",
        user: Sequence[tuple[str, bytes | None]] = (),
        **given: Any,
    ) -> Half:
        """Append a half message as the client does."""
        values = {"born_timestamp": BORN_MS, "producer_group": GROUP, "real_topic": ORDERS, **given}
        pair = self.lane if pair is None else pair
        metadata = A_HALF._replace(**{"transaction_id": txn or self.new_id(), **values})
        mine = (names.HALF, HALF_METADATA.encode(metadata))
        at = self.write(NAMES.half, pair, key=key, value=value, headers=[*user, mine])
        return Half(at, pair, self.clock_ms, metadata, key, value, tuple(user))

    def put_back(self, half: Half) -> Half:
        """Append a copy as the daemon does."""
        first = half.metadata.first_append_timestamp
        return self.half(
            half.txn,
            pair=half.pair,
            key=half.key,
            value=half.value,
            user=half.user,
            **half.metadata._replace(
                origin_offset=half.origin,
                check_times=half.metadata.check_times + 1,
                first_append_timestamp=half.ms if first < 0 else first,
            )._asdict(),
        )

    def op(self, kind: OpKind, half: Half, **given: Any) -> int:
        """Append an op about the transaction whose last half message is `half`."""
        values = {
            "transaction_id": half.txn,
            "timestamp": BORN_MS,
            "half_offset": half.origin,
            "resume_count": half.metadata.resume_count,
            "producer_group": half.metadata.producer_group,
            "message_count": half.metadata.message_index + 1,
            **given,
        }
        op = AN_OP._replace(kind=kind, **values)
        return self.write(NAMES.op, half.pair, key=half.txn.encode(), value=OP.encode(op))

    def real(self, half: Half, partition: int = 0, **given: Any) -> int:
        """Append the delivery of a message."""
        meta = half.metadata
        headers = names.real_headers(
            list(half.user), half.txn, meta.born_timestamp, meta.message_index
        )
        values = {"key": half.key, "value": half.value, "headers": headers, **given}
        return self.write(half.metadata.real_topic, self.lane + partition, **values)

    def dead(self, half: Half, reason: DeadReason, **given: Any) -> int:
        """Append the dead letter of a message; with is_stub=True one that only refers to it."""
        place = {
            "source_topic": NAMES.half, "source_partition": half.pair, "source_offset": half.at
        }  # fmt: skip
        letter = A_LETTER._replace(reason=reason, **{**place, **given})
        headers = [
            (names.HALF, HALF_METADATA.encode(half.metadata)),
            (names.DEAD, DEAD_LETTER.encode(letter)),
        ]
        if letter.is_stub:
            return self.write(NAMES.dead, self.lane, headers=headers)
        headers[:0] = half.user
        return self.write(NAMES.dead, self.lane, key=half.key, value=half.value, headers=headers)

    def delivered(self, partition: int = 0, **given: Any) -> Half:
        """Append a whole transaction of one message, committed and delivered."""
        half = self.half(**given)
        self.op(OpKind.COMMIT, half)
        self.real(half, partition)
        return half

    def drop(self, topic: str, partition: int, offset: int) -> None:
        """Take one record out, as if it had never been there; offsets stay."""
        rows = self.rows[topic, partition]
        rows[:] = [row for row in rows if row[4] != offset]

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Let the log begin at `offset`."""
        rows = self.rows[topic, partition]
        rows[:] = [row for row in rows if row[4] >= offset]
        self.cut[topic, partition] = offset

    def all(self) -> list[tuple[Any, ...]]:
        return [row for of in self.rows.values() for row in of]

    def real_topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.rows} - {NAMES.half, NAMES.op, NAMES.dead})

    def read(self, *topics: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of these topics, partition by partition."""
        for (topic, _), rows in sorted(self.rows.items()):
            yield from rows if topic in topics else ()

    def halves(self) -> Iterator[tuple[int, HalfMetadata, str | None, Content]]:
        """Yield of each half record its offset, metadata, flaw and content."""
        for key, value, _, _, at, _, _, headers in self.read(NAMES.half):
            meta, flaw = names.parse_half(headers)
            yield at, meta, flaw, (meta.real_topic, key, value, tuple(names.user_headers(headers)))

    def ops(self) -> Iterator[Op]:
        return (OP.decode(row[1]) for row in self.read(NAMES.op))

    def reals(self) -> Iterator[tuple[str, Content]]:
        """Yield of each delivery its transaction id and content."""
        for key, value, topic, _, _, _, _, headers in self.read(*self.real_topics()):
            user = tuple(header for header in headers if header[0] not in DAEMONS)
            yield dict(headers)[names.TRANSACTION_ID].decode(), (topic, key, value, user)

    def letters(self) -> Iterator[tuple[HalfMetadata, DeadReason]]:
        """Yield of each dead letter the message's metadata and the reason."""
        for *_, headers in self.read(NAMES.dead):
            yield names.parse_half(headers[:-1])[0], DEAD_LETTER.decode(headers[-1][1]).reason

    def frame(self, spark: SparkSession, *topics: str) -> DataFrame:
        rows = [row for (topic, _), of in self.rows.items() if topic in topics for row in of]
        return spark.createDataFrame(rows, KAFKA_SCHEMA)

    def facts(self, spark: SparkSession) -> DataFrame:
        return all_facts(
            facts_of_halves(self.frame(spark, NAMES.half)),
            facts_of_ops(self.frame(spark, NAMES.op)),
            facts_of_reals(self.frame(spark, *self.real_topics())),
            facts_of_dead_letters(self.frame(spark, NAMES.dead)),
        )

    def snapshot(self, **given: Any) -> Snapshot:
        topics: dict[str, dict[int, Range]] = {
            NAMES.half: {}, NAMES.op: {}, NAMES.dead: {}, ORDERS: {}
        }  # fmt: skip
        for pair in range(PAIRS):
            topics[NAMES.half][pair] = topics[NAMES.op][pair] = Range(0, 0)
        for (topic, partition), rows in self.rows.items():
            start = self.cut.get((topic, partition), 0)
            end = rows[-1][4] + 1 if rows else start
            first_ms = int(rows[0][5].timestamp() * 1000 + 0.5) if rows else 2**62
            cut_ms = first_ms if start else -1
            topics.setdefault(topic, {})[partition] = Range(start, end, cut_ms)
        ops, halves = topics[NAMES.op], topics[NAMES.half]
        values: dict[str, Any] = {
            "prefix": "",
            "taken_ms": self.clock_ms,
            "topics": topics,
            "real_topics": tuple(sorted(topics.keys() - {NAMES.half, NAMES.op, NAMES.dead})),
            "applied": {pair: each.end for pair, each in ops.items()},
            "positions": {pair: each.end for pair, each in halves.items()},
            **given,
        }
        return Snapshot(**values)

    def bounds(self, **given: Any) -> Bounds:
        """Return bounds over `snapshot(**given)`."""
        return Bounds(self.snapshot(**given))
