"""Appends records for the operator's commands: a record is stored when the call returns."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from halfbridge.checker.errors import InDoubtError
from halfbridge.kafka.errors import INFERRED, NO_RIGHT, NO_SUCH_TOPIC, Code
from halfbridge.kafka.sending import Acknowledgements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.kafka.ports import ClientError, SentRecord, TopicPartition, Writer
    from halfbridge.serde.headers import Headers

# How long the client library retries; an operator waits for it. Brokers elect a leader in less.
APPEND_TIMEOUT_S = 10.0
# How much longer the answer is waited for, which the client library gives by itself: it looks for
# records that timed out once a second.
_GRACE_S = 2.0
# A broker said that the record is not stored.
_REFUSED = (
    NO_RIGHT
    | NO_SUCH_TOPIC
    | {
        Code.UNKNOWN_TOPIC,
        Code.UNKNOWN_PARTITION,
        Code.MSG_SIZE_TOO_LARGE,
        Code.INVALID_RECORD,
        Code.POLICY_VIOLATION,
    }
)


class Appender:
    """Appends one record after the other. Not thread-safe."""

    def __init__(self, cluster: Cluster, writer: Writer) -> None:
        self._cluster = cluster
        self._writer = writer
        self._proofs = Acknowledgements(cluster.ports.run.current)

    def append(
        self, place: TopicPartition, value: bytes, key: bytes, headers: Headers | None = None
    ) -> tuple[int, int]:
        """Return the offset and the timestamp (ms since 1970) of the record, which is stored.

        Raises:
            AdminError: the record is not stored; run the command again.
            InDoubtError: the record may be stored; read the log before the command is run again.
        """
        topic, partition = place
        acks: list[tuple[ClientError | None, SentRecord]] = []
        with self._cluster.errors(f"write to {topic}", topics=(topic,)):
            self._writer.produce(
                topic,
                value,
                key,
                partition,
                lambda error, record: acks.append((error, record)),
                0,
                headers,
            )
            self._writer.flush(APPEND_TIMEOUT_S + _GRACE_S)
        if not acks:
            self._writer.purge()
            raise InDoubtError(
                f"{topic} {partition}: no acknowledgement came; try again", topics=(topic,)
            )
        _, record = acks[0]
        failure, offset = self._proofs.failure(*acks[0]), record.offset()
        if failure is None and offset is not None:
            return offset, record.timestamp()[1]
        if failure is None or failure is INFERRED:
            raise InDoubtError(
                f"{topic} {partition}: the acknowledgement proves nothing", topics=(topic,)
            )
        if failure.code in _REFUSED:
            with self._cluster.errors(f"write to {topic}", topics=(topic,)):
                raise failure
        raise InDoubtError(
            f"{topic}: {failure}; the record may be stored", topics=(topic,)
        ) from failure


@contextmanager
def appending(cluster: Cluster) -> Iterator[Appender]:
    """Yield an appender; records that are unacknowledged at the end of the block are given up."""
    writer = cluster.writer(
        {
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "delivery.timeout.ms": int(APPEND_TIMEOUT_S * 1000),
        }
    )
    try:
        yield Appender(cluster, writer)
    finally:
        writer.close()
