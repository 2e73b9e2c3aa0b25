"""Where a half partition ends, proven by a record that the worker appends and aborts (rule 1).

A deposed leader reports its old end until it learns that it was deposed. The offset of a record
acknowledged with acks=all proves the end, because the brokers acknowledge it together, under the
present leader. The kafka_txn around the record is aborted, so no consumer reads it. Source: the
read barrier of Raft (section 8: a leader that is to answer a read commits an entry first).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.loop.clients import QUESTION_S, client_config
from halfbridge.checker.loop.failures import KafkaTxnFailedError
from halfbridge.checker.loop.outlet import STALL_S, failed
from halfbridge.checker.loop.producers import UNENDED_S, TransactionalIds, with_spares
from halfbridge.checker.loop.report import report_limiter
from halfbridge.kafka.error_log import ErrorLog
from halfbridge.kafka.errors import Code, ConfigError, KafkaFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.loop.clients import SlotIds
    from halfbridge.kafka.ports import Call, ClientError, Ports, SentRecord, TransactionalWriter

_log = logging.getLogger("halfbridge.checker")

# Least pause between two rounds; the pause is also at least as long as the last round, up to
# RETRY_S. Readers of the half partition wait during a round: shorter holds them up more often,
# longer delays the ops that wait for a proof.
PAUSE_S = 0.02
# Pause after a failure: another worker may have taken the id over, or brokers are down. Longer
# delays the ops that wait, shorter repeats what cannot succeed yet.
RETRY_S = 1.0
# Failures that last longer are shown in health. Elections, and takeovers of an id, take less.
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
    block. The producer is made at once, which aborts an open kafka_txn of a killed predecessor. A
    partition that is away stops no other proof: a round ends without it, and the next round has a
    spare transactional id (ADR 26), after a call of `spare_taken`.
    """

    def __init__(
        self,
        config: CheckerConfig,
        ids: SlotIds,
        ports: Ports,
        spare_taken: Callable[[], object] = lambda: None,
    ) -> None:
        self._clock = ports.clock
        self._topic = config.names.half
        first = f"{ids.transactional_id_prefix}-barrier"
        names = [f"{first}-{number}" if number else first for number in with_spares(1)]
        self._writer = _Writer(config, TransactionalIds(names, ports.clock, spare_taken), ports)
        self._wanted: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._proofs: list[EndProof] = []
        self._silent: Mapping[int, bool] = {}
        self._next_at = 0.0
        self._began = ports.clock.monotonic()
        self._failing_since: float | None = None
        self._trouble = ""
        self._limiter = report_limiter()
        self._thread = ports.run.side_thread("halfbridge-barrier")
        self._under_way: Call | None = self._thread.submit(self._writer.open)

    def ask(self, partition: int, token: int) -> None:
        """Ask for a proof of the end of half `partition`; the same question twice is one."""
        if self._asked.get(partition) != token:
            self._wanted[partition] = token

    def serve(self, now: float, stall_s: float = STALL_S) -> int:
        """Begin a round if one is wanted and none is under way; return its number of records."""
        if not self._wanted or self._under_way is not None or now < self._next_at:
            return 0
        self._asked, self._wanted = self._wanted, {}
        self._began = now
        self._under_way = self._thread.submit(self._prove, stall_s)
        return len(self._asked)

    def answers(self) -> Iterable[EndProof]:
        """Return the new proofs; after a failed round, `trouble` may name the failure."""
        if self._under_way is None or not self._under_way.done():
            return ()
        error, self._under_way = self._under_way.exception(), None
        self._asked = {}
        now = self._clock.monotonic()
        took_s = min(max(PAUSE_S, now - self._began), RETRY_S)
        self._next_at = now + (took_s if error is None else RETRY_S)
        if error is not None and not isinstance(error, _FAILURES):
            raise error
        self._note(error, now)
        proofs, self._proofs = self._proofs, []
        return proofs

    def pop_silent(self) -> Mapping[int, bool]:
        """Return, once, which partitions took no record in time, and whether they are to blame.

        Where no partition took any, the last kafka_txn of the id may not have ended yet.
        """
        silent, self._silent = self._silent, {}
        return silent

    def trouble(self, now: float) -> str:
        """Return why ends cannot be proven, so that ops may wait; empty if they can."""
        since = self._failing_since
        return self._trouble if since is not None and now - since >= FAILING_S else ""

    def close(self) -> None:
        """Stop without waiting."""
        self._thread.submit(self._writer.close)
        self._thread.leave()

    def _note(self, error: BaseException | None, now: float) -> None:
        if error is None:
            self._failing_since = None
            return
        self._failing_since = now if self._failing_since is None else self._failing_since
        txn_id = self._writer.transactional_id
        cause = f"{error}; the daemon writes it with the transactional id {txn_id}"
        self._trouble = f"the end of a half partition cannot be proven: {cause}"
        if self._limiter.is_due(str(error), now):
            _log.warning("the end of a half partition cannot be proven: %s", cause)

    def _prove(self, stall_s: float) -> None:
        asked = self._asked
        ends, self._silent = self._writer.ends(self._topic, list(asked), stall_s)
        self._proofs = [EndProof(number, asked[number], end) for number, end in ends.items()]
        self._writer.open()  # after silence: readers wait until what is open is aborted


_FAILURES = (KafkaFailure, KafkaTxnFailedError, ConfigError)


class _Writer:
    def __init__(self, config: CheckerConfig, ids: TransactionalIds, ports: Ports) -> None:
        self._kafka = ports.kafka
        self._ids = ids
        self.transactional_id = ids.first
        self._settings = {
            **client_config(config),
            "transaction.timeout.ms": config.kafka_txn_timeout_ms,
            "linger.ms": 0,
            "error_cb": ErrorLog(_log, ports.clock).note,
        }
        self._writer: TransactionalWriter | None = None
        self._is_first_round = True
        self._init_s = QUESTION_S

    def open(self) -> None:
        """Make the writer, unless there is one; an open kafka_txn of its id is aborted.

        Raises:
            KafkaTxnFailedError: not possible now; the worker tries again.
            ConfigError: a property is wrong; the operator corrects it.
        """
        if self._writer is None:
            self._opened()

    def _opened(self) -> TransactionalWriter:
        init_s, self._init_s = self._init_s, QUESTION_S  # as long, once it failed
        name, writer = self._ids.started(lambda name: (name, self._started(name, init_s)))
        self.transactional_id, self._writer = name, writer
        self._init_s, self._is_first_round = UNENDED_S, True
        self._ids.fence(lambda name: self._started(name, UNENDED_S).close(), [name])
        return writer

    def _started(self, transactional_id: str, init_s: float) -> TransactionalWriter:
        writer = self._kafka.transactional_writer(
            {**self._settings, "transactional.id": transactional_id}
        )
        try:
            writer.init(init_s)
        except KafkaFailure as failure:
            writer.close()
            raise failed(failure) from failure
        return writer

    def ends(
        self, topic: str, partitions: Iterable[int], stall_s: float
    ) -> tuple[dict[int, int], dict[int, bool]]:
        """Return for each partition an offset above all records stored before the call.

        Also returns what `Barriers.pop_silent` returns; after silence there is no writer: call
        `open`. Raises KafkaFailure or KafkaTxnFailedError: try again, with a new writer.
        """
        writer = self._writer or self._opened()
        is_first, self._is_first_round = self._is_first_round, False
        ends: dict[int, int] = {}

        def note(error: ClientError | None, record: SentRecord) -> None:
            offset = record.offset()
            if error is None and offset is not None:  # else no broker has confirmed it (`INFERRED`)
                ends[record.partition()] = offset

        try:
            writer.begin()
            for partition in partitions:
                writer.produce(topic, _RECORD, None, partition, note)
            if writer.flush(stall_s):
                # The abort would wait for a marker.
                self.close()
                is_clear = bool(ends) or is_first
                return ends, {each: is_clear for each in partitions if each not in ends}
            # Readers wait for the abort, so it comes before the answer.
            writer.abort(QUESTION_S)
        except KafkaFailure:
            self.close()
            raise
        except BufferError as error:  # the user set queue.buffering.max.* lower than one round
            self.close()
            raise KafkaFailure(Code.QUEUE_FULL) from error
        return ends, {}

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
