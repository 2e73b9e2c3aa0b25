"""Where a half partition ends, proven by a record that the worker appends and aborts (rule 1).

A broker's answer about the end of a partition proves nothing, because a deposed leader reports its
old end until it learns that it was deposed. The offset of an acknowledged record proves the end,
because brokers acknowledge a record (acks=all) only together, under the present leader. The
kafka_txn around the record is aborted, so no consumer reads the record.
Source: the read barrier of replicated logs (Raft, section 8: a leader that is to answer a read
commits an entry first).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.bridge.errors import ConfigError
from halfbridge.bridge.failure import Code, KafkaFailure
from halfbridge.bridge.trouble import Troubles
from halfbridge.checker.loop.clients import QUESTION_S, client_config
from halfbridge.checker.loop.report import TellNow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.bridge.ports import Call, Ports, TransactionalWriter
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.clients import SlotIds

_log = logging.getLogger("halfbridge.checker")

# Least pause between two rounds; the pause is also at least as long as the last round, up to
# RETRY_S. Readers of the half partition wait during a round.
PAUSE_S = 0.02
# Pause after a failure: another worker may have taken the id over, or brokers are down.
RETRY_S = 1.0
# Failures that last longer are shown in health.
FAILING_S = 10.0
_RECORD = b"halfbridge: where the log ended; aborted"


class EndProof(NamedTuple):
    """Half `partition` ended at `end` at some moment after the question with `token`."""

    partition: int
    token: int
    end: int


class Barriers:
    """Appends barrier records without delaying the loop; `answers` returns the proofs.

    One round runs at a time, in a thread of its own, because the calls of a transactional producer
    block. The producer is made at once, which aborts an open kafka_txn of a killed predecessor.

    Args:
        config: The daemon's settings.
        ids: Kafka's ids of the worker's slot.
        ports: Kafka, clock and concurrency are used.
    """

    def __init__(self, config: CheckerConfig, ids: SlotIds, ports: Ports) -> None:
        self._clock = ports.clock
        self._topic = config.names.half
        self._writer = _Writer(config, f"{ids.transactional_id_prefix}-barrier", ports)
        self._wanted: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._proofs: list[EndProof] = []
        self._next_at = 0.0
        self._began = ports.clock.monotonic()
        self._failing_since: float | None = None
        self._trouble = ""
        self._told = TellNow()
        self._thread = ports.run.side_thread("halfbridge-barrier")
        self._under_way: Call | None = self._thread.submit(self._writer.open)

    def ask(self, partition: int, token: int) -> None:
        """Ask for a proof of the end of half `partition`; the same question twice is one."""
        if self._asked.get(partition) != token:
            self._wanted[partition] = token

    def serve(self, now: float) -> int:
        """Begin a round if one is wanted and none is under way; return its number of records.

        Args:
            now: Monotonic seconds.
        """
        if not self._wanted or self._under_way is not None or now < self._next_at:
            return 0
        self._asked, self._wanted = self._wanted, {}
        self._began = now
        self._under_way = self._thread.submit(self._prove)
        return len(self._asked)

    def answers(self) -> Iterable[EndProof]:
        """Return the new proofs; after a failed round none, and `trouble` may name the failure."""
        if self._under_way is None or not self._under_way.done():
            return ()
        error, self._under_way = self._under_way.exception(), None
        self._asked = {}
        now = self._clock.monotonic()
        took_s = min(max(PAUSE_S, now - self._began), RETRY_S)
        self._next_at = now + (took_s if error is None else RETRY_S)
        if error is not None and not isinstance(error, KafkaFailure | ConfigError):
            raise error
        self._note(error, now)
        proofs, self._proofs = self._proofs, []
        return proofs

    def trouble(self, now: float) -> str:
        """Return why ends cannot be proven, so that ops may wait; empty if they can."""
        since = self._failing_since
        return self._trouble if since is not None and now - since >= FAILING_S else ""

    def close(self) -> None:
        """Stop without waiting."""
        self._thread.submit(self._writer.close)
        self._thread.leave()

    def _note(self, error: BaseException | None, now: float) -> None:
        """Keep how a round ended, for `trouble`; a failure is logged at a limited pace."""
        if error is None:
            self._failing_since = None
            return
        self._failing_since = now if self._failing_since is None else self._failing_since
        self._trouble = (
            f"the end of a half partition cannot be proven: {error}; the daemon writes it with the"
            f" transactional id {self._writer.transactional_id}"
        )
        if self._told.is_due(str(error), now):
            _log.warning("%s", self._trouble)

    def _prove(self) -> None:
        asked = self._asked
        ends = self._writer.ends(self._topic, list(asked))
        self._proofs = [EndProof(number, asked[number], end) for number, end in ends.items()]


class _Writer:
    """The transactional writer, in its thread."""

    def __init__(self, config: CheckerConfig, transactional_id: str, ports: Ports) -> None:
        self._kafka = ports.kafka
        self.transactional_id = transactional_id
        self._settings = {
            **client_config(config),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": config.kafka_txn_timeout_ms,
            "linger.ms": 0,
            "error_cb": Troubles(_log, ports.clock).note,
        }
        self._writer: TransactionalWriter | None = None

    def open(self) -> None:
        """Make the writer; an open kafka_txn of its id is aborted.

        Raises:
            KafkaFailure: not possible now; try again.
            ConfigError: a property is wrong; the worker's other clients report the same.
        """
        self._opened()

    def _opened(self) -> TransactionalWriter:
        writer = self._kafka.transactional_writer(self._settings)
        writer.init(QUESTION_S)
        self._writer = writer
        return writer

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return for each partition an offset above all records stored before the call.

        Raises:
            KafkaFailure: not possible now; try again, with a new writer.
        """
        writer = self._writer or self._opened()
        ends = {}

        def note(error: Any, record: Any) -> None:
            offset = record.offset()
            if error is None and offset is not None:  # else no broker has confirmed it (`INFERRED`)
                ends[record.partition()] = offset

        try:
            writer.begin()
            for partition in partitions:
                writer.produce(topic, _RECORD, None, partition, note)
            writer.flush(QUESTION_S)
            # Readers wait for the abort, so it comes before the answer.
            writer.abort(QUESTION_S)
        except KafkaFailure:
            self.close()
            raise
        except BufferError as error:  # the user set queue.buffering.max.* lower than one round
            self.close()
            raise KafkaFailure(Code.QUEUE_FULL) from error
        return ends

    def close(self) -> None:
        """Drop the writer; the next writer with its id aborts an open kafka_txn."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
