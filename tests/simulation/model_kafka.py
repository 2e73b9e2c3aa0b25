"""The model behind the contract's adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.broker import Broker
from tests.simulation.contract import WasRefusedError
from tests.simulation.group import Member, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.contract import TransactionalProducer


class ModelKafka:
    """The model behind the adapter."""

    def __init__(self) -> None:
        self.place = ("topic", 0)
        self.broker = Broker({"topic": 1}, timeout_ms=1_000, session_ms=1_000)
        self.broker.group.partitions = 1
        self.partition = self.broker.partitions[self.place]

    def append(self, value: bytes) -> int:
        """Store a record of an idempotent producer."""
        self.broker.now_ms += 1
        return self.broker.append(self.place, None, value, None)

    def read(self, *, is_committed: bool = True) -> list[tuple[int, bytes]]:
        """Return offset and value of what a reader is shown now, from the log start on."""
        found, _ = self.partition.read(self.partition.start, 1_000, is_committed=is_committed)
        return [(record.offset(), record.value() or b"") for record in found]

    def times(self) -> list[tuple[int, int]]:
        """Return kind and value of the records' timestamps."""
        return [record.timestamp() for record in self.partition.read(0, 1_000)[0]]

    def start_lso_end(self) -> tuple[int, int, int]:
        """Return the log start, the last stable offset and the high watermark."""
        return self.partition.start, self.partition.lso, self.partition.end

    def delete_before(self, offset: int) -> None:
        """Delete what is below `offset`."""
        self.partition.delete_before(offset)

    def producer(self, name: str) -> TransactionalProducer:
        """Return a new producer with this transactional id; it has been initialised."""
        return ModelProducer(self, name)

    def join(self, instance: str) -> Member:
        """Have a static member join; return its metadata once it has its assignment."""
        group = self.broker.group
        member_id = group.join(instance, 0, is_quiet=True)
        return Member(instance, member_id, group.generation)

    def committed(self, *, is_stable: bool = True) -> tuple[int, str] | None:
        """Return the group's offset and its metadata; None while a stable one is awaited."""
        found = self.broker.fetch_offsets([self.place], is_stable=is_stable)
        return None if found is None else (found[self.place][0], found[self.place][1] or "")

    def settle(self) -> None:
        """Wait until no marker is under way."""
        self.broker.mark_all()


class ModelProducer:
    """A transactional producer of the model."""

    def __init__(self, kafka: ModelKafka, name: str) -> None:
        self._kafka, self._name = kafka, name
        self._epoch = kafka.broker.init_producer(name)

    def write(self, *values: bytes) -> list[int]:
        """Write records and return their offsets."""

        def produce() -> int:
            broker, place = self._kafka.broker, self._kafka.place
            broker.add(self._name, self._epoch, place)
            rows = [(None, value, None) for value in values]
            return broker.produce(self._name, self._epoch, place, rows)

        last = self._ask(produce)
        return list(range(last - len(values) + 1, last + 1))

    def send_offset(self, member: object, offset: int, metadata: str) -> None:
        """Have an offset committed with the kafka_txn."""

        def send() -> int:
            broker, offsets = self._kafka.broker, {self._kafka.place: (offset, metadata)}
            if broker.is_ending(self._name):
                broker.mark_all()  # the client asks again until the last markers have arrived
            broker.add(self._name, self._epoch, None)
            broker.send_offsets(self._name, self._epoch, member, offsets)  # type: ignore[arg-type]
            return 0

        self._ask(send)

    def commit(self) -> None:
        """Commit."""
        self._end(is_commit=True)

    def abort(self) -> None:
        """Abort."""
        self._end(is_commit=False)

    def _end(self, *, is_commit: bool) -> None:
        def end() -> int:
            self._kafka.broker.end_txn(self._name, self._epoch, is_commit=is_commit)
            return 0

        self._ask(end)

    def _ask(self, question: Callable[[], int]) -> int:
        try:
            return question()
        except RefusedError as error:
            raise WasRefusedError(str(error)) from error
