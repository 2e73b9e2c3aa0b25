"""One transactional writer: proof of records, failures of kafka_txns, and its replacement."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import (
    COMMIT_RETRIES_MAX,
    HANG_GRACE_S,
    SLOW_COMMIT_S,
    STALL_S,
    Transactor,
)
from halfbridge.checker.loop.publish import Outgoing
from halfbridge.kafka.errors import Code, KafkaFailure
from tests.fake_ports import Clock, fake_ports

CONFIG = CheckerConfig(kafka_txn_timeout_ms=10_000)
TIMEOUT_S = 10.0
COPY = Outgoing("half", 3, b"k", b"v", [], 0, is_copy=True)
REAL = Outgoing("orders", 0, b"k", b"v", [], 0)
LARGE = Outgoing("large", 0, b"k", b"v", [], 0)


class _Writer:
    """A transactional writer; brokers answer a topic's records by `says`, else with an offset.

    Attributes:
        says: Topic -> an error, or the offset that an acknowledgement names.
        commits: The result of each commit, in order: a failure, or the seconds that it takes.
        calls: The names of the calls.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.says: dict[str, Any] = {}
        self.commits: list[Any] = []
        self.calls: list[str] = []
        self.purged: KafkaFailure | None = None
        self.on_lost: Callable[[], None] = lambda: None
        self._queue: list[Callable[[], None]] = []

    def transactional_writer(
        self, _properties: dict[str, Any], *, on_lost: Callable[[], None]
    ) -> _Writer:
        self.on_lost = on_lost
        return self

    def init(self, _timeout_s: float) -> None:
        self.calls.append("init")

    def begin(self) -> None:
        self.calls.append("begin")

    def produce(self, topic: str, *given: Any) -> None:
        if topic == "behind":  # the client knows that an earlier record was refused
            raise KafkaFailure(Code.STATE, "Unable to produce message: Local: Erroneous state")
        said = self.says.get(topic, 7)
        error, offset = (said, None) if isinstance(said, KafkaFailure) else (None, said)
        record = SimpleNamespace(
            topic=lambda: topic, partition=lambda: given[2], offset=lambda: offset
        )
        self._queue.append(lambda: given[3](self.purged or error, record))

    def flush(self, timeout_s: float) -> int:
        reported = [tell for tell in self._queue if self.says.get("nobody") is None]
        self._queue = [] if reported else self._queue
        for tell in reported:
            tell()
        self.clock.now += 0.0 if reported else timeout_s
        return len(self._queue)

    def purge(self) -> None:
        self.calls.append("purge")
        self.purged = KafkaFailure(Code.PURGE_QUEUE)
        self.says.pop("nobody", None)

    def send_offsets(self, _offsets: Any, _membership: object, _timeout_s: float) -> None:
        self.calls.append("offsets")

    def commit(self, _timeout_s: float) -> None:
        self.calls.append("commit")
        if not self.commits:
            return
        outcome = self.commits.pop(0)
        if isinstance(outcome, KafkaFailure):
            raise outcome
        self.clock.now += outcome

    def abort(self, _timeout_s: float) -> None:
        self.calls.append("abort")

    def poll(self, _wait_s: float) -> int:
        return self.flush(0.0)


@pytest.fixture
def writer() -> _Writer:
    """A writer whose brokers store every record."""
    return _Writer()


@pytest.fixture
def transactor(writer: _Writer) -> Transactor:
    """A transactor that is started."""
    made = Transactor(CONFIG, "id", ports=fake_ports(writer, writer.clock))
    made.start()
    return made


def test_a_record_that_is_refused_while_others_are_handed_over_is_named(
    writer: _Writer, transactor: Transactor
) -> None:
    """If produce fails after a refused record, the error names the refused record's topic."""
    writer.says["large"] = KafkaFailure(Code.MSG_SIZE_TOO_LARGE, "too large")
    with pytest.raises(KafkaTxnFailedError, match="too large") as caught:
        transactor.write([LARGE, REAL._replace(topic="behind")])
    assert (caught.value.topic, caught.value.too_large) == ("large", True)
    assert writer.calls[-1] == "abort"


def test_a_rebuild_must_read_to_behind_the_highest_copy(
    writer: _Writer, transactor: Transactor
) -> None:
    """`write` returns the offset after the last copy of each half partition, and no others."""
    assert transactor.write([REAL]) == {}
    writer.says["half"] = 41
    assert transactor.write([REAL, COPY]) == {3: 42}


@pytest.mark.parametrize("record", [COPY, REAL])
def test_a_record_whose_acknowledgement_names_no_offset_fails_its_kafka_txn(
    writer: _Writer, transactor: Transactor, record: Outgoing
) -> None:
    """An acknowledgement without an offset, which the client infers, fails the kafka_txn."""
    writer.says[record.topic] = None
    with pytest.raises(KafkaTxnFailedError, match="without an offset"):
        _transact(transactor, record)
    assert "commit" not in writer.calls


def test_records_that_nobody_acknowledges_fail_their_kafka_txn(
    writer: _Writer, transactor: Transactor
) -> None:
    """After STALL_S without an acknowledgement the write fails, and names the partitions."""
    writer.says["nobody"] = True
    began = writer.clock.now
    with pytest.raises(KafkaTxnFailedError, match="1 records were not acknowledged") as failed:
        _transact(transactor, REAL)
    assert STALL_S < writer.clock.now - began < STALL_S + 1
    assert writer.calls[-1] == "purge"
    assert failed.value.places == {("orders", 0)}


def test_silence_after_a_commit_names_no_partition(writer: _Writer, transactor: Transactor) -> None:
    """After a commit no partition is named: the id may wait for markers of its last kafka_txn."""
    _transact(transactor, REAL)
    writer.says["nobody"] = True
    with pytest.raises(KafkaTxnFailedError) as failed:
        _transact(transactor, REAL)
    assert failed.value.places == frozenset()


def test_a_record_behind_a_refused_one_names_no_partition(
    writer: _Writer, transactor: Transactor
) -> None:
    """The partition of a purged record, which was never sent, is not named."""
    writer.says |= {
        "large": KafkaFailure(Code.MSG_SIZE_TOO_LARGE),
        "orders": KafkaFailure(Code.PURGE_QUEUE),
    }
    writer.commits = [KafkaFailure(Code.STATE, requires_abort=True)]
    with pytest.raises(KafkaTxnFailedError) as failed:
        _transact(transactor, REAL, LARGE)
    assert failed.value.places == frozenset()


def test_a_record_that_is_refused_for_good_is_named(
    writer: _Writer, transactor: Transactor
) -> None:
    """The error has the refused record's topic, not the commit's reason; the txn is aborted."""
    writer.says |= {
        "large": KafkaFailure(Code.MSG_SIZE_TOO_LARGE),
        "orders": KafkaFailure(Code.PURGE_QUEUE),
    }
    writer.commits = [KafkaFailure(Code.STATE, requires_abort=True)]
    with pytest.raises(KafkaTxnFailedError) as failed:
        _transact(transactor, REAL, LARGE)
    error = failed.value
    assert (error.topic, error.too_large, error.permanent) == ("large", True, True)
    assert not any((error.fenced, error.topic_refused, error.untimely))
    assert writer.calls[-1] == "abort"


def test_of_several_bad_timestamps_the_reason_is_reported(
    writer: _Writer, transactor: Transactor
) -> None:
    """A commit's INVALID_TIMESTAMP replaces INVALID_RECORD, and no topic is named."""
    writer.says["orders"] = KafkaFailure(Code.INVALID_RECORD)
    writer.commits = [KafkaFailure(Code.INVALID_TIMESTAMP)]
    with pytest.raises(KafkaTxnFailedError) as failed:
        _transact(transactor, REAL)
    assert (failed.value.untimely, failed.value.topic) == (True, "")


def test_a_bad_timestamp_beside_another_refusal_is_blamed_on_nobody(
    writer: _Writer, transactor: Transactor
) -> None:
    """If a too large record failed first, its topic is named, not that of an invalid record."""
    writer.says["large"] = KafkaFailure(Code.MSG_SIZE_TOO_LARGE)
    writer.says["orders"] = KafkaFailure(Code.INVALID_RECORD)
    writer.commits = [KafkaFailure(Code.MSG_SIZE_TOO_LARGE, requires_abort=True)]
    with pytest.raises(KafkaTxnFailedError) as failed:
        _transact(transactor, LARGE, REAL)
    assert (failed.value.topic, failed.value.too_large) == ("large", True)


def test_an_invalid_record_beside_another_failure_is_blamed_on_nobody(
    writer: _Writer, transactor: Transactor
) -> None:
    """If the kafka_txn failed for another reason, the invalid record's topic is not named."""
    writer.says["orders"] = KafkaFailure(Code.INVALID_RECORD)
    writer.commits = [KafkaFailure(Code.MSG_TIMED_OUT, requires_abort=True)]
    with pytest.raises(KafkaTxnFailedError) as failed:
        _transact(transactor, REAL)
    assert (failed.value.topic, failed.value.permanent) == ("", False)


def test_an_invalid_record_of_an_ended_kafka_txn_may_be_one_of_several(
    writer: _Writer, transactor: Transactor
) -> None:
    """If the commit reports only the state, INVALID_RECORD is permanent and vague."""
    writer.says["orders"] = KafkaFailure(Code.INVALID_RECORD)
    writer.commits = [KafkaFailure(Code.STATE)]
    with pytest.raises(KafkaTxnFailedError) as failed:
        _transact(transactor, REAL)
    assert (failed.value.permanent, failed.value.is_vague) == (True, True)


@pytest.mark.parametrize("code", [Code.INVALID_RECORD, Code.MSG_SIZE_TOO_LARGE])
def test_an_invalid_record_is_one_if_its_kafka_txn_failed_for_it(
    writer: _Writer, transactor: Transactor, code: int
) -> None:
    """If the commit fails with the code of the record, the error is permanent and not vague."""
    writer.says["orders"] = KafkaFailure(code)
    writer.commits = [KafkaFailure(code, requires_abort=True)]
    with pytest.raises(KafkaTxnFailedError) as failed:
        _transact(transactor, REAL)
    assert (failed.value.permanent, failed.value.is_vague) == (True, False)


def test_a_commit_is_not_repeated_for_ever(writer: _Writer, transactor: Transactor) -> None:
    """After COMMIT_RETRIES_MAX time-outs the outcome of the commit is unknown."""
    writer.commits = [KafkaFailure(Code.TIMED_OUT, is_retriable=True)] * COMMIT_RETRIES_MAX
    with pytest.raises(KafkaTxnFailedError, match="unknown"):
        _transact(transactor, REAL)


@pytest.mark.parametrize(
    ("took_s", "must_be_replaced"), [(0.5, False), (SLOW_COMMIT_S + 0.1, True)]
)
def test_a_slow_commit_replaces_its_producer(
    writer: _Writer, transactor: Transactor, took_s: float, *, must_be_replaced: bool
) -> None:
    """After a slow commit, maybe sent twice (KAFKA-17754), the producer must be replaced."""
    writer.commits = [took_s]
    _transact(transactor, REAL)
    assert transactor.must_be_replaced() is must_be_replaced


def test_a_lost_connection_replaces_its_producer(writer: _Writer, transactor: Transactor) -> None:
    """After a lost connection the producer must be replaced, until it starts a new epoch."""
    writer.on_lost()
    assert transactor.must_be_replaced()
    transactor.start()
    assert not transactor.must_be_replaced()


@pytest.mark.parametrize(
    ("code", "is_fenced"), [(Code.FENCED, True), (Code.TRANSPORT, False), (Code.STATE, False)]
)
def test_a_fence_is_reported(
    writer: _Writer, transactor: Transactor, code: Code, *, is_fenced: bool
) -> None:
    """Only the code FENCED makes the error fenced."""
    writer.commits = [KafkaFailure(code)]
    with pytest.raises(KafkaTxnFailedError) as failed:
        _transact(transactor, REAL)
    assert failed.value.fenced is is_fenced


def test_sending_offsets_that_takes_longer_than_its_time_out_hangs(
    writer: _Writer, transactor: Transactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """is_hung is true for another thread during the call (librdkafka #5456)."""
    seen = []

    def hangs(*_given: object) -> None:
        for _ in range(2):
            seen.append(transactor.is_hung)
            writer.clock.now += TIMEOUT_S + HANG_GRACE_S + 0.1

    monkeypatch.setattr(writer, "send_offsets", hangs)
    _transact(transactor, REAL)
    assert (seen, transactor.is_hung) == ([False, True], False)


def _transact(transactor: Transactor, *records: Outgoing) -> None:
    transactor.write(records)
    transactor.commit([("op", 0, 1, "")], None)
