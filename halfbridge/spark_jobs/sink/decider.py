"""Sends the decisions: ops that commit or roll back the transactions of task attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.serde.avro import OP
from halfbridge.serde.records import OpSource, new_op
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError, SendError
from halfbridge.spark_jobs.sink.sender import Sender
from halfbridge.spark_jobs.sink.signing import read_signer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.kafka.errors import KafkaFailure
    from halfbridge.kafka.ports import Ports
    from halfbridge.serde.manifest_records import ManifestTransaction
    from halfbridge.serde.records import OpKind
    from halfbridge.spark_jobs.sink.options import SinkOptions

_NOT_DECIDED = "decisions were not acknowledged"


class Decider(Sender):
    """Writes decisions in rounds: each round waits for the one before.

    Args:
        options: The sink's options.
        ports: Makes the clients.
        actor: This process's name in decisions, for people.

    Attributes:
        turn: A lock, for several threads that decide.
    """

    def __init__(self, options: SinkOptions, ports: Ports, *, actor: str) -> None:
        super().__init__(options, ports, changes={"linger.ms": 0})
        self._options = options
        self._actor = actor
        self._time_ms = ports.clock.time_ms
        self.turn = ports.run.waker()

    def decide(
        self,
        kind: OpKind,
        rounds: Iterable[Iterable[ManifestTransaction]],
        *,
        producer_group: str,
        source: OpSource = OpSource.PRODUCER,
        reason: str = "",
        timeout_s: float,
    ) -> dict[int, int]:
        """Write decisions in rounds; a round is proven to be stored before the next one begins.

        Returns:
            Half partition -> offset of its last decision in the op topic.

        Args:
            kind: The decision, the same for all transactions.
            rounds: Rounds of transactions.
            producer_group: Producer group of the half messages.
            source: Who decides.
            reason: Why, for people who read the log.
            timeout_s: Longest wait for a round.

        Raises:
            CommitInDoubtError: not all decisions of a round were acknowledged; later rounds were
                not written.
            SinkOptionError: the key file cannot be used here; the rounds that are left were not
                written.
        """
        signer = read_signer(self._options, producer_group, self._time_ms())
        failures: list[KafkaFailure] = []
        last: dict[int, int] = {}

        def written(error: Any, record: Any) -> None:
            failure = self.failure(error, record)
            if failure is not None:
                failures.append(failure)
            else:
                partition, offset = record.partition(), record.offset()
                last[partition] = max(last.get(partition, offset), offset)

        for transactions in rounds:
            try:
                for each in transactions:
                    now_ms = self._time_ms()
                    op = new_op(
                        transaction_id=each.transaction_id,
                        timestamp=now_ms,
                        half_offset=each.half_offset,
                        producer_group=producer_group,
                        kind=kind,
                        message_count=each.message_count,
                        source=source,
                        actor=self._actor,
                        reason=reason,
                    )
                    key, value = each.transaction_id.encode(), OP.encode(op)
                    partition = each.half_partition
                    headers = signer.op(partition, key, value, now_ms) if signer else None
                    self.send(self.names.op, value, key, partition, written, headers)
                self.flush(timeout_s)
            except SendError as error:
                raise CommitInDoubtError(f"{_NOT_DECIDED}: {error}") from error
            if failures:
                self.give_up()
                raise CommitInDoubtError(f"{_NOT_DECIDED}: {failures[0]}")
        return last
