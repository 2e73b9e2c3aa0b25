"""The state that all transactions of one producer share: the writer, its limits, its life cycle."""

from __future__ import annotations

import logging
import os
import socket
import weakref
from functools import partial
from typing import TYPE_CHECKING

from halfbridge.bridge.daemon_settings import DaemonLimits, EndAsker
from halfbridge.bridge.delivery import DeliveryServer, Outcomes
from halfbridge.bridge.message import Message, check_whole_number, not_a_message
from halfbridge.kafka.error_log import ErrorLog
from halfbridge.kafka.errors import (
    BridgeError,
    ForkedProcessError,
    InvalidMessageError,
    ProducerClosedError,
)
from halfbridge.kafka.sending import PURGE_S, RecordWriter
from halfbridge.kafka.signatures import client_signer
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.bridge.futures import DecisionFuture
    from halfbridge.kafka.ports import Clock, Ports, Writer
    from halfbridge.kafka.topics import RealTopics
    from halfbridge.serde.topics import HalfShape

_LOG = logging.getLogger("halfbridge.bridge")

# How long transactions without a key share a half partition: sticky.partitioning.linger.ms of
# librdkafka (KIP-480), long enough that decisions follow their half messages into one request.
KEYLESS_STICKY_S = 0.01

# Notified of a fork, in the child process.
_alive: weakref.WeakSet[Shared] = weakref.WeakSet()


class Shared:
    """One idempotent writer, checked before each use. Thread-safe.

    `on_decision_failed` is called with the future of a failed decision that no thread awaits.

    Raises:
        ConfigError: the key file cannot be used; its owner corrects it.
    """

    def __init__(
        self,
        config: BridgeConfig,
        writer: Writer,
        ports: Ports,
        *,
        half: HalfShape,
        real_topics: RealTopics,
        on_decision_failed: Callable[[DecisionFuture], object] | None = None,
    ) -> None:
        self.config = config
        self.waits_for_decisions = config.decisions == "acknowledged"
        self.failures = DecisionFailures(ports.clock, on_decision_failed)
        self.outcomes = Outcomes()
        self.new_id = ports.transaction_id
        self.now = ports.clock.monotonic
        self.time_ms = ports.clock.time_ms
        self.producer_group = config.producer_group
        self.half_topic = config.names.half
        self.op_topic = config.names.op
        self.partitions = half.partitions
        self.signer = client_signer(
            config.key_file, config.producer_group, config.names, now_ms=self.time_ms()
        )
        self.actor = f"{socket.gethostname()}:{os.getpid()}"
        self.server = DeliveryServer(writer, ports, in_flight_max=config.in_flight_max)
        self.daemon_limits = DaemonLimits(config, ports)
        self.gate = self.daemon_limits.gate
        self.ends = EndAsker(config, ports)
        self._keyless_partition, self._keyless_until_s = 0, 0.0
        self._message_bytes_max = half.message_bytes_max
        self._real_topics = real_topics
        self.writer = writer
        self.room_timeout_s = config.send_timeout_ms / MS_PER_S
        self.records = records = RecordWriter(
            writer,
            ports,
            room_timeout_s=self.room_timeout_s,
            serve=self.server.serve,
            refuse=partial(self.check_open, decides=True),
        )
        # Not methods that call these: each would cost a call a record. The caller of `produce`
        # then notes the send with `server`.
        self.produce, self.not_proven = records.produce, records.not_proven
        # The error that refuses use, if the producer is closed or forked.
        self._closed: type[BridgeError] | None = None
        self._closing: type[BridgeError] | None = None
        _alive.add(self)

    def check_open(self, *, decides: bool = False) -> None:
        """Check that the producer may be used; `close` still accepts decisions.

        Raises ProducerClosedError, ForkedProcessError: closed, or made before a fork; make another.
        """
        refusal = self._closed if decides else self._closing
        if refusal is ForkedProcessError:
            raise ForkedProcessError(
                "this producer was made before a fork; make one in the child process"
            )
        if refusal is not None:
            raise ProducerClosedError("this producer is closed; make another")

    def check(self, message: Message) -> None:
        """Check that `message` can be sent and, once committed, delivered.

        Raises:
            InvalidMessageError: no Message, too large, immunity too long, topic or partition wrong;
                the caller corrects it.
            TopicSetupError: the real topic does not exist; its owner creates it.
            TransactionsRejectedError: an operator stopped new transactions; repeat the call later.
            FatalError: the producer is closed; make another.
        """
        if self._closing is not None:
            self.check_open()
        if self.gate.refusal is not None:
            self.gate.check_send()
        if not isinstance(message, Message):
            raise not_a_message(message)
        if self.gate.plain:
            self.gate.check_topic(message.topic)
        # Headers count twice: they are part of the record, and they reduce the room for its body.
        size = message.body_bytes + 2 * message.header_bytes
        if size > self._message_bytes_max:
            raise InvalidMessageError(
                f"message of {size} bytes (headers counted twice) is larger than "
                f"{self._message_bytes_max}: max.message.bytes of {self.half_topic} - 64 KiB",
                field="value",
            )
        immunity = message.immunity_ms
        if immunity is not None:
            self.check_immunity(immunity)
        self._real_topics.check(message.topic, message.partition or 0)

    def half_partition(self, transaction_id: str, key: bytes | None) -> int:
        """Return the half partition of a transaction whose first message has this key.

        Transactions without a key go to one partition for KEYLESS_STICKY_S, so that their records
        share requests; then the next one's id, whose last eight digits are random, chooses again.
        """
        if key is not None:
            return partition_of(key, self.partitions)
        now_s = self.now()
        if now_s >= self._keyless_until_s:
            self._keyless_partition = int(transaction_id[-8:], 16) % self.partitions
            self._keyless_until_s = now_s + KEYLESS_STICKY_S
        return self._keyless_partition

    def has_seen(self, message: Message) -> bool:
        """Return whether `check` needs to ask no broker about the topic of a message."""
        return self._real_topics.has_seen(message.topic, message.partition or 0)

    def check_immunity(self, immunity_ms: int) -> None:
        """Raise InvalidMessageError unless a transaction may have this immunity; shorten it."""
        check_whole_number("immunity_ms", immunity_ms)
        if immunity_ms > self.config.immunity_ms_max:
            raise InvalidMessageError(
                f"immunity_ms {immunity_ms} is more than {self.config.immunity_ms_max}, half of "
                "transaction_age_ms_max",
                field="immunity_ms",
            )
        self.daemon_limits.check_immunity(immunity_ms)

    def wait_for_room(self) -> None:
        """Return once fewer than in_flight_max records are unacknowledged.

        Raises:
            BackpressureError: not within send_timeout_ms; nothing was sent; slow down and repeat.
            ProducerClosedError: closed during the wait; `close` no longer waits for the record;
                make another producer.
        """
        if self.server.is_full:
            self.server.wait_for_room(self.room_timeout_s)
            self.check_open(decides=True)

    def close(self, timeout_s: float) -> int:
        """Wait for records and callbacks; return how many are unacknowledged, and so in doubt."""
        deadline = self.now() + timeout_s
        self._closing = ProducerClosedError
        self.daemon_limits.stop()
        self.server.flush(timeout_s)
        self._closed = ProducerClosedError
        # A decision may have passed the check before `_closed` was set.
        left = self.server.flush(max(0.0, deadline - self.now()))
        if left:
            self.writer.purge()  # their callbacks run before this returns
            self.server.flush(PURGE_S)
        self.server.stop()
        self.writer.close()
        self.ends.close()
        return left

    @property
    def in_flight(self) -> int:
        """How many records brokers have not acknowledged yet."""
        return len(self.writer)

    @property
    def is_forked(self) -> bool:
        """Return whether this is a copy in a child process, without the parent's threads."""
        return self._closed is ForkedProcessError

    def forked(self) -> None:
        """Note that this is a copy in a child process."""
        self._closed = self._closing = ForkedProcessError


# Failures of decisions share one limit of the log, whatever their error.
_ANY_FAILURE = 0


class DecisionFailures:
    """Reports the failures of decisions that no thread awaits.

    Called by the deliveries' server, whose callbacks run in one thread at a time.

    Attributes:
        count: Failed decisions so far; a check settles each of them.
    """

    def __init__(self, clock: Clock, on_failed: Callable[[DecisionFuture], object] | None) -> None:
        self._log = ErrorLog(_LOG, clock)
        self._on_failed = on_failed
        self.count = 0

    def note(self, future: DecisionFuture) -> None:
        """Count and log a failed decision, and hand it to the user's callback."""
        self.count += 1
        self._log.warn(_ANY_FAILURE, str(future.exception()), suppressed_as="others")
        if self._on_failed is not None:
            self._on_failed(future)


def _forked() -> None:
    for shared in _alive:
        shared.forked()


os.register_at_fork(after_in_child=_forked)
