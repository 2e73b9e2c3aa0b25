"""A real broker behind the contract's adapter."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import NewTopic, OffsetSpec

from halfbridge.bridge.kafka.admin import AdminClient
from tests.simulation.contract import WasRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.contract import TransactionalProducer

LIMIT_S = 60.0
# How long a stable offset is waited for before it counts as pending.
PENDING_S = 2.0


class RealKafka:
    """One topic of its own and one group, on a broker that others use too."""

    def __init__(self, servers: str, prefix: str) -> None:
        self.servers, self.prefix, self.topic = servers, prefix, f"{prefix}topic"
        self._admin: Any = AdminClient({"bootstrap.servers": servers})
        config = {"message.timestamp.type": "LogAppendTime"}
        made = self._admin.create_topics([NewTopic(self.topic, 1, 1, config=config)])
        made[self.topic].result(LIMIT_S)
        self._plain: Any = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        self._members: list[Any] = []

    def close(self) -> None:
        """Let all members go."""
        for member in self._members:
            member.close()

    def append(self, value: bytes) -> int:
        """Store a record of an idempotent producer."""
        offsets: list[int] = []
        self._plain.produce(self.topic, value, partition=0, on_delivery=_noting(offsets))
        assert self._plain.flush(LIMIT_S) == 0
        return offsets[0]

    def read(self, *, is_committed: bool = True) -> list[tuple[int, bytes]]:
        """Return offset and value of what a reader is shown now, from the log start on."""
        records = self._records(is_committed=is_committed)
        return [(record.offset(), record.value()) for record in records]

    def times(self) -> list[tuple[int, int]]:
        """Return kind and value of the records' timestamps."""
        return [record.timestamp() for record in self._records(is_committed=True)]

    def start_lso_end(self) -> tuple[int, int, int]:
        """Return the log start, the last stable offset and the high watermark."""
        committed, uncommitted = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        return (
            self._offset(OffsetSpec.earliest(), uncommitted),
            self._offset(OffsetSpec.latest(), committed),
            self._offset(OffsetSpec.latest(), uncommitted),
        )

    def delete_before(self, offset: int) -> None:
        """Delete what is below `offset`."""
        where = TopicPartition(self.topic, 0, offset)
        for future in self._admin.delete_records([where]).values():
            future.result(LIMIT_S)

    def producer(self, name: str) -> TransactionalProducer:
        """Return a new producer with this transactional id; it has been initialised."""
        return RealProducer(self, f"{self.prefix}{name}")

    def join(self, instance: str) -> object:
        """Have a static member join; return its metadata once it has its assignment."""
        joined: list[Any] = []
        member: Any = self._consumer(**{"group.instance.id": instance})
        self._members.append(member)

        def note(_: Any, __: Any) -> None:
            joined.append(member.consumer_group_metadata())

        member.subscribe([self.topic], on_assign=note)
        self._wait(lambda: self._poll() or bool(joined))
        return joined[-1]

    def committed(self, *, is_stable: bool = True) -> tuple[int, str] | None:
        """Return the group's offset and its metadata; None while a stable one is awaited."""
        level = "read_committed" if is_stable else "read_uncommitted"
        asking: Any = self._consumer(**{"isolation.level": level})
        try:
            (found,) = asking.committed([TopicPartition(self.topic, 0)], timeout=PENDING_S)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._TIMED_OUT:
                return None
            raise
        finally:
            asking.close()
        return found.offset, found.metadata or ""

    def settle(self) -> None:
        """Wait until no marker is under way."""
        self._wait(lambda: self.start_lso_end()[1] == self.start_lso_end()[2])

    def _consumer(self, **settings: object) -> Any:
        return Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"{self.prefix}group",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                **settings,
            }
        )

    def _records(self, *, is_committed: bool) -> list[Any]:
        level = "read_committed" if is_committed else "read_uncommitted"
        reader: Any = self._consumer(**{"isolation.level": level})
        reader.assign([TopicPartition(self.topic, 0, self.start_lso_end()[0])])
        records: list[Any] = []
        try:
            deadline = monotonic() + LIMIT_S
            while monotonic() < deadline:
                record = reader.poll(0.1)
                if record is None:
                    continue
                if record.error() is not None:
                    assert record.error().code() == KafkaError._PARTITION_EOF
                    return records
                records.append(record)
        finally:
            reader.close()
        raise AssertionError("the end is not reached")

    def _offset(self, spec: Any, level: Any) -> int:
        where = TopicPartition(self.topic, 0)
        futures = self._admin.list_offsets({where: spec}, isolation_level=level)
        offset: int = futures[where].result(LIMIT_S).offset
        return offset

    def _poll(self) -> bool:
        """Let all members take part in a rebalance; those that were fenced do not matter."""
        for member in self._members:
            member.poll(0.05)
        return False

    def _wait(self, is_done: Callable[[], bool]) -> None:
        deadline = monotonic() + LIMIT_S
        while not is_done():
            assert monotonic() < deadline, "it does not come"


class RealProducer:
    """A transactional producer of the client."""

    def __init__(self, kafka: RealKafka, name: str) -> None:
        self._topic = kafka.topic
        self._is_open = False
        self._producer: Any = Producer(
            {"bootstrap.servers": kafka.servers, "transactional.id": name, "retry.backoff.ms": 20}
        )
        self._producer.init_transactions(LIMIT_S)

    def write(self, *values: bytes) -> list[int]:
        """Write records and return their offsets."""
        self._begin()
        offsets: list[int] = []
        for value in values:
            self._producer.produce(self._topic, value, partition=0, on_delivery=_noting(offsets))
        assert self._producer.flush(LIMIT_S) == 0
        return offsets

    def send_offset(self, member: object, offset: int, metadata: str) -> None:
        """Have an offset committed with the kafka_txn."""
        self._begin()
        where = TopicPartition(self._topic, 0, offset, metadata)
        self._ask(lambda: self._producer.send_offsets_to_transaction([where], member, LIMIT_S))

    def commit(self) -> None:
        """Commit."""
        self._is_open = False
        self._ask(lambda: self._producer.commit_transaction(LIMIT_S))

    def abort(self) -> None:
        """Abort."""
        self._is_open = False
        self._ask(lambda: self._producer.abort_transaction(LIMIT_S))

    def _begin(self) -> None:
        if not self._is_open:
            self._is_open = True
            self._producer.begin_transaction()

    def _ask(self, question: Callable[[], object]) -> None:
        try:
            question()
        except KafkaException as error:
            raise WasRefusedError(error.args[0].name()) from error


def _noting(offsets: list[int]) -> Callable[[Any, Any], None]:
    """Return a delivery callback that keeps the offset."""
    return lambda _, told: offsets.append(told.offset())
