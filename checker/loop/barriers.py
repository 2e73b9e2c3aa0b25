"""Where a half partition ends, proven by a record that the worker appends and aborts (rule 1).

The answer of a broker to the question for the end proves nothing: a broker that was deposed tells
where the log ended, until it learns of it. An acknowledged record proves the end: brokers
acknowledge a record (acks=all) only together, under the leader of today. The kafka_txn around the
record is aborted, so nobody ever reads the record.
Source: the read barrier of replicated logs (Raft, section 8: a leader that is to answer a read
commits an entry first).
"""

from __future__ import annotations

import logging
from contextlib import suppress
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

# Between two rounds, whatever is asked, and at least as long as the last one took: readers of the
# half partition wait while one is open. But no longer than after a failure.
PAUSE_S = 0.02
# After a failure: the producer's id may be another worker's by now, or brokers are away.
RETRY_S = 1.0
# For so long a failure may be one of those that pass: health turns red then.
FAILING_S = 10.0
_RECORD = b"halfbridge: where the log ended; aborted"


class EndProof(NamedTuple):
    """Half `partition` ended at `end` at some moment after `token` was asked."""

    partition: int
    token: int
    end: int


class Barriers:
    """Appends barrier records without holding up the loop; proofs are fetched by `answers`.

    One round at a time, in a thread of its own: the calls of a transactional producer block. The
    producer is made at once, since that aborts the kafka_txn of a predecessor that was killed.

    Args:
        config: The daemon's.
        ids: Of the worker's slot.
        ports: All of the outside.
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
        """Have it proven where half `partition` ends; the same question twice is one."""
        if self._asked.get(partition) != token:
            self._wanted[partition] = token

    def serve(self, now: float) -> int:
        """Begin a round when one is wanted and none is under way; return how many records it has.

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
        """Return the proofs that have come."""
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
        """Return why ops that name what does not exist hold up their pairs; empty: they do not."""
        since = self._failing_since
        return self._trouble if since is not None and now - since >= FAILING_S else ""

    def close(self) -> None:
        """Let go without waiting."""
        self._thread.submit(self._writer.close)
        self._thread.leave()

    def _note(self, error: BaseException | None, now: float) -> None:
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
        """Make the writer; what another one with its id has open is aborted.

        Raises:
            KafkaFailure: not now; try again.
            ConfigError: of a property; the worker's other clients say so as well.
        """
        self._opened()

    def _opened(self) -> TransactionalWriter:
        writer = self._kafka.transactional_writer(self._settings)
        writer.init(QUESTION_S)
        self._writer = writer
        return writer

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return partition -> offset below which all stands that was stored before the call.

        Raises:
            KafkaFailure: not now; try again. The writer is another one then.
        """
        writer = self._writer or self._opened()
        ends = {}

        def note(error: Any, record: Any) -> None:
            offset = record.offset()
            if error is None and offset is not None:  # else no broker has said so (`INFERRED`)
                ends[record.partition()] = offset

        try:
            writer.begin()
            for partition in partitions:
                writer.produce(topic, _RECORD, None, partition, note)
            writer.flush(QUESTION_S)
            # Readers wait for it, so it comes before the answer.
            writer.abort(QUESTION_S)
        except KafkaFailure:
            self.close()
            raise
        except BufferError as error:  # the user's queue.buffering.max.* are smaller than a round
            self.close()
            raise KafkaFailure(Code.QUEUE_FULL) from error
        return ends

    def close(self) -> None:
        """Let the writer go; the next one with its id aborts what it left open."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(KafkaFailure):
                writer.purge()
                writer.poll(0)
