"""A writer with a transactional id, as `ports.TransactionalWriter`.

The states, and the flags of errors, are librdkafka's.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde.units import NS_PER_MS
from halfbridge.testkit.memory.client import Kind, timed_out
from halfbridge.testkit.memory.writer import MemoryWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfbridge.kafka.ports import TopicPartition
    from halfbridge.testkit.memory.group import Membership, Offsets
    from halfbridge.testkit.memory.log import BatchNumber, Row

_TIMEOUT_MS = 60_000  # transaction.timeout.ms
_FENCING = frozenset((Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH))
_AGAIN = frozenset((Code.CONCURRENT_TRANSACTIONS,))
_OFFSETS_AGAIN = _AGAIN | {Code.UNKNOWN_TOPIC_OR_PART}
# Errors that a broker reports for a batch; for others librdkafka reports only INCONSISTENT.
_SAID_BY_BROKER = frozenset(
    (Code.MSG_SIZE_TOO_LARGE, Code.INVALID_RECORD, Code.INVALID_TIMESTAMP,
     Code.TOPIC_AUTHORIZATION_FAILED, Code.INVALID_TXN_STATE)
)  # fmt: skip
_INCONSISTENT = -149  # librdkafka's code
_CONFLICT = -173  # librdkafka's code


class _State(Enum):
    """The states of the writer."""

    INIT = "Init"
    READY = "Ready"
    IN_TXN = "InTransaction"
    COMMITTING = "committing"
    ABORTING = "aborting"


class MemoryTransactionalWriter(MemoryWriter):
    """Writes kafka_txns to the brokers in memory."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self._id = self.text("transactional.id")
        self._timeout_ns = NS_PER_MS * self.number("transaction.timeout.ms", _TIMEOUT_MS)
        self._is_idempotent = True
        self._state = _State.INIT
        self._fatal: KafkaFailure | None = None
        self._fatal_unreported = False
        self._abortable: KafkaFailure | None = None
        self._failed = 0
        self._added: set[TopicPartition | str] = set()
        self._needs_new_epoch = False

    def init(self, timeout_s: float) -> None:
        if not self._id:
            raise KafkaFailure(
                -145,
                "The Transactional API requires transactional.id to be configured",
                name="_NOT_CONFIGURED",
            )
        self._require(_State.INIT)
        self._take_over(self._deadline(timeout_s))
        self._state = _State.READY

    def begin(self) -> None:
        self._require(_State.READY)
        self._state = _State.IN_TXN
        self._failed = 0
        self._added.clear()

    def produce(self, *arguments: Any, **keywords: Any) -> None:
        self._scheduler.check(self.process)
        if self._fatal is not None:
            raise KafkaFailure(Code.FATAL, "Unable to produce message: Local: Fatal error")
        if self._state is not _State.IN_TXN or self._abortable is not None:
            raise KafkaFailure(Code.STATE, "Unable to produce message: Local: Erroneous state")
        super().produce(*arguments, **keywords)

    def poll(self, wait_s: float) -> int:
        served = super().poll(wait_s)
        if self._fatal_unreported and self._fatal is not None:
            self._fatal_unreported = False
            raise self._fatal
        return served

    def send_offsets(
        self, offsets: Sequence[tuple[str, int, int, str]], member: object, timeout_s: float
    ) -> None:
        self._require(_State.IN_TXN)
        who: Membership = member  # type: ignore[assignment]  # our own, opaque to users
        deadline_ns = self._deadline(timeout_s)
        staged: Offsets = {
            (topic, number): (offset, text) for topic, number, offset, text in offsets
        }
        broker, name, epoch = self._broker, self._id, self._epoch
        self._ask(
            Kind.ADD_TO_TXN, lambda: broker.add_offsets(name, epoch, who.group), deadline_ns, _AGAIN
        )
        self._added.add(who.group)
        if self._abortable is not None:
            # A record was rejected between the two requests: librdkafka gives no reason
            # (rd_kafka_txn_send_TxnOffsetCommitRequest).
            raise KafkaFailure(Code.STATE, "Failed to commit offsets: Local: Erroneous state")
        self._ask(
            Kind.TXN_OFFSETS,
            lambda: broker.send_offsets(name, epoch, who, staged),
            deadline_ns,
            _OFFSETS_AGAIN,
        )

    def commit(self, timeout_s: float) -> None:
        deadline_ns = self._deadline(timeout_s)
        if self._state is not _State.COMMITTING:
            self._require(_State.IN_TXN)
            self._state = _State.COMMITTING
        if left := super().flush(timeout_s):
            raise timed_out(
                "Failed to flush all outstanding messages within the API timeout:"
                f" {left} message(s) remaining"
            )
        self._raise_if_failed()
        if self._failed:
            raise self._abort_required(
                _INCONSISTENT,
                f"{self._failed} message(s) failed delivery (see individual delivery reports)",
                "_INCONSISTENT",
            )
        self._end(deadline_ns, is_commit=True)

    def abort(self, timeout_s: float) -> None:
        deadline_ns = self._deadline(timeout_s)
        if self._fatal is not None:
            raise self._fatal
        if self._state is _State.COMMITTING and self._abortable is None:
            raise _conflict()
        if self._state not in {_State.IN_TXN, _State.COMMITTING, _State.ABORTING}:
            self._require(_State.IN_TXN)
        self._state = _State.ABORTING
        self._purge_waiting()
        if super().flush(timeout_s):
            raise timed_out()
        self._abortable = None
        self._end(deadline_ns, is_commit=False)
        if self._needs_new_epoch:
            self._take_over(deadline_ns)

    # --- parts ------------------------------------------------------------------------------

    def _delivery_ms(self) -> int:
        """Return a record's delivery time-out in ms: at most the kafka_txn's."""
        limit = self.number("transaction.timeout.ms", _TIMEOUT_MS)
        return min(super()._delivery_ms(), limit)

    def _require(self, state: _State) -> None:
        self._scheduler.check(self.process)
        self._raise_if_failed()
        if self._state is _State.COMMITTING:
            raise _conflict()
        if self._state is not state:
            raise KafkaFailure(Code.STATE, f"Operation not valid in state {self._state.value}")

    def _raise_if_failed(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._abortable is not None:
            raise self._abortable

    def _take_over(self, deadline_ns: int) -> None:
        self._producer_id, self._epoch = self._persist(
            Kind.INIT,
            self._id,
            lambda: self._broker.coordinator.init(self._id, self._timeout_ns),
            deadline_ns,
            _AGAIN,
        )
        self._next_numbers.clear()
        self._needs_new_epoch = False

    def _end(self, deadline_ns: int, *, is_commit: bool) -> None:
        if self._added:
            coordinator, epoch = self._broker.coordinator, self._epoch
            self._ask(
                Kind.END_TXN,
                lambda: coordinator.end(self._id, epoch, is_commit=is_commit),
                deadline_ns,
                is_end=True,
            )
        self._added.clear()
        self._state = _State.READY

    def _ask(
        self,
        kind: Kind,
        do: Callable[[], None],
        deadline_ns: int,
        again: frozenset[int] = frozenset(),
        *,
        is_end: bool = False,
    ) -> None:
        """Send a request to the coordinator; its error decides what the writer may do next."""
        try:
            self._persist(kind, self._id, do, deadline_ns, again)
        except KafkaFailure as failure:
            if failure.code == Code.TIMED_OUT:
                raise
            if failure.code in _FENCING:
                raise self._died(_fenced()) from failure
            if is_end:
                raise self._died(failure) from failure
            raise self._abort_required(failure.code, failure.text, failure.name) from failure

    def _abort_required(self, code: int, text: str, name: str = "") -> KafkaFailure:
        if self._abortable is None:
            self._abortable = KafkaFailure(code, text, name=name, requires_abort=True)
        return self._abortable

    def _died(self, failure: KafkaFailure) -> KafkaFailure:
        if self._fatal is None:
            self._fatal = KafkaFailure(failure.code, failure.text, name=failure.name, is_fatal=True)
            self._fatal_unreported = True
        return self._fatal

    def _prepare(self, place: TopicPartition, deadline_ns: int) -> None:
        if self._fatal is not None:
            raise KafkaFailure(Code.FATAL, "Local: Fatal error")
        if place in self._added:
            return
        name, epoch = self._id, self._epoch
        try:
            self._persist(
                Kind.ADD_TO_TXN,
                name,
                lambda: self._broker.add_partition(self.process.name, name, epoch, place),
                deadline_ns,
                _AGAIN,
            )
        except KafkaFailure as failure:
            if failure.code in _FENCING:
                self._died(_fenced())
                raise KafkaFailure(Code.FATAL, "Local: Fatal error") from failure
            raise
        self._added.add(place)

    def _store(self, place: TopicPartition, rows: list[Row], number: BatchNumber | None) -> int:
        return self._broker.produce(self.process.name, place, rows, number, self._id)

    def _note_failure(self, failure: KafkaFailure) -> None:
        self._failed += 1
        if failure.code in _FENCING:
            self._died(_fenced())
        elif failure.code in _SAID_BY_BROKER or failure.code == Code.MSG_TIMED_OUT:
            self._abort_required(failure.code, failure.text, failure.name)

    def _begin_new_epoch(self) -> None:
        self._needs_new_epoch = True


def _fenced() -> KafkaFailure:
    return KafkaFailure(
        Code.FENCED, "Local: This instance has been fenced by a newer instance", is_fatal=True
    )


def _conflict() -> KafkaFailure:
    text = "Conflicting commit_transaction API call is already in progress"
    return KafkaFailure(_CONFLICT, text, name="_CONFLICT", is_retriable=True)
