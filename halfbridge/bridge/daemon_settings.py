"""What the client knows of the settings topic, and where partitions end.

A thread of its own reads the topic when a producer starts, and new records after that. The daemon's
limits are taken once, because the client only warns of them; the operators' switch is followed.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.bridge.config import admin_properties, reader_properties
from halfbridge.kafka.ends import Ends, half_end
from halfbridge.kafka.error_log import log_safely
from halfbridge.kafka.errors import BridgeError, TopicSetupError, TransactionsRejectedError
from halfbridge.kafka.settings_topic import READING, read_topic
from halfbridge.kafka.threads import locked
from halfbridge.logs import one_line
from halfbridge.serde.limits import (
    METADATA_BYTES_MAX,
    OP_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
)
from halfbridge.serde.records import NO_OFFSET, DaemonSettings
from halfbridge.serde.settings_topic import TopicType
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.kafka.ports import Admin, Concurrency, Ports, Reader, Running, TopicPartition
    from halfbridge.kafka.settings_topic import LimitsRecord, Reading, SwitchRecord

_LOG = logging.getLogger("halfbridge.bridge")
# How long `close` waits for a reader; it notices within a tenth of a second, unless the machine is
# busy. A reader that is left behind ends by itself.
_STOP_S = 2.0
# Interval of reading the topic: how late a client learns that operators stopped new transactions.
# A reading is two small requests on an open connection.
FOLLOW_S = 10.0
# The largest things that this client may write, by the name of the daemon's limit.
_WRITTEN_MAX = {
    "metadata_bytes_max": METADATA_BYTES_MAX,
    "op_bytes_max": OP_BYTES_MAX,
    "transaction_messages_max": TRANSACTION_MESSAGES_MAX,
    "transaction_bytes_max": TRANSACTION_BYTES_MAX,
}


class DaemonLimits:
    """The daemon's limits as one producer knows them, and the operators' switch. Thread-safe."""

    def __init__(self, config: BridgeConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._known: DaemonSettings | None = None  # until the topic was read
        self._has_warned_of_immunity = False
        self.gate = Gate(ports.run)
        self._reader: Reader | None = None
        self._position = 0  # of the settings topic: what is new begins here
        self._stopping = ports.run.event()
        self._reading: Running | None = None

    def start(self) -> None:
        """Begin to read the topic; returns at once."""
        self._reading = self._ports.run.start(self._follow, "halfbridge-settings")

    def stop(self) -> None:
        """Stop reading."""
        self._stopping.set()
        if self._reading is not None:
            self._reading.join(_STOP_S)

    def check_immunity(self, immunity_ms: int) -> None:
        """Warn once if the daemon may discard a message before its first check."""
        known = self._known
        if known is None or self._has_warned_of_immunity:
            return
        if 2 * immunity_ms <= known.transaction_age_ms_max:
            return
        self._has_warned_of_immunity = True
        log_safely(
            _LOG.warning,
            "a message asks for an immunity of %d ms, and the daemon discards undecided"
            " transactions after %d ms: shorten the immunity to half of that, or raise the"
            " daemon's transaction_age_ms_max",
            immunity_ms,
            known.transaction_age_ms_max,
        )

    def _follow(self) -> None:
        try:
            is_first = True
            while True:
                self._poll(is_first=is_first)
                self.gate.refreshed()
                is_first = False
                if self._stopping.wait(FOLLOW_S):
                    return
        finally:
            self._close_reader()

    def _poll(self, *, is_first: bool) -> None:
        """Read new records; a record that cannot be read changes nothing."""
        log = _LOG.info if is_first else _LOG.debug
        text = "the daemon's limits are not known; using defaults"
        if self._known is not None:
            text = "the settings topic was not read; using the limits that were read before"
        try:
            reading = self._read()
        except BridgeError as error:
            self._close_reader()
            if not self._stopping.is_set():
                log_safely(log, "%s: %s", text, error)
            return
        except BaseException:  # noqa: BLE001 (a hint that cannot be read stops nothing)
            self._close_reader()
            log_safely(_LOG.exception, "%s", text)
            return
        if self._known is None:
            self._take(reading.said[-1] if reading.said else None)
        is_new_topic = reading.end < self._position
        if reading.switched is not None or is_new_topic:
            self.gate.take(reading.switched)
        if reading.types or is_new_topic:
            self.gate.take_types(reading.types, is_whole=is_new_topic)
        self._position = reading.end

    def _read(self) -> Reading:
        ports = self._ports
        if self._reader is None:
            properties = {**reader_properties(self._config, ports.clock), **READING}
            self._reader = ports.kafka.reader(properties)
        return read_topic(
            self._reader,
            self._config.names.settings,
            start=self._position,
            stop=self._stopping,
            clock=ports.clock,
        )

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._ports.run.close_clients(reader)

    def _take(self, last: LimitsRecord | None) -> None:
        self._known = DaemonSettings()
        if last is None or (last.settings is None and not last.problem):
            log_safely(_LOG.info, "the daemon has not published its limits; using defaults")
        elif last.settings is None:
            log_safely(
                _LOG.warning,
                "the daemon's limits cannot be read; using defaults (offset %d of %s: %s);"
                " where the daemon is newer than this client, upgrade the client",
                last.offset,
                self._config.names.settings,
                last.problem,
            )
        else:
            self._known = last.settings
            log_safely(_LOG.debug, "the daemon's limits are %r", last.settings)
            for difference in differences(self._config, last.settings):
                log_safely(_LOG.warning, "%s", difference)


def differences(config: BridgeConfig, daemon: DaemonSettings) -> list[str]:
    """Return a sentence for each setting in which client and daemon disagree: who changes what."""
    found = []
    for name, consequence in (
        ("transaction_timeout_ms", "until then `late` in receipts is wrong"),
        ("transaction_age_ms_max", _age_consequence(config, daemon)),
    ):
        mine, theirs = getattr(config, name), getattr(daemon, name)
        if mine != theirs:
            found.append(
                f"{name} is {mine} in this client and {theirs} in the daemon: set {name}={theirs}"
                f" (HALFBRIDGE_{name.upper()}) in this client, or change the daemon's; "
                f"{consequence}"
            )
    found += [
        f"{name} is {most} in this client and {getattr(daemon, name)} in the daemon, which does not"
        " deliver what is larger: run client and daemon of the same version"
        for name, most in _WRITTEN_MAX.items()
        if most > getattr(daemon, name)
    ]
    return found


def _age_consequence(config: BridgeConfig, daemon: DaemonSettings) -> str:
    if config.transaction_age_ms_max < daemon.transaction_age_ms_max:
        return (
            f"until then messages with an immunity of more than {config.immunity_ms_max} ms are"
            " refused, which the daemon would take"
        )
    return (
        f"until then messages with an immunity of more than {daemon.transaction_age_ms_max // 2} ms"
        " may be discarded before anybody is asked"
    )


# How long the first `begin` of a producer waits for the first reading of the settings topic: a
# producer that is started while operators reject begins nothing. A reading takes some 50 ms.
FIRST_READ_S = 1.0


class Gate:
    """Refuses what operators reject. Thread-safe.

    Attributes:
        refusal: Why nothing may be sent now, or None. Open transactions may still be decided.
        plain: Real topics to which transactions do not deliver.
        waits_for_reading: Whether the next `check_begin` may wait.
    """

    def __init__(self, run: Concurrency) -> None:
        self.refusal: TransactionsRejectedError | None = None
        self.plain: frozenset[str] = frozenset()
        self._was_read = run.event()
        self.waits_for_reading = True

    def check_begin(self, topics: Iterable[str]) -> None:
        """Check that a transaction may begin; the first call waits for the first reading.

        Raises:
            TransactionsRejectedError: an operator stopped new transactions; nothing was begun;
                repeat the call once they allow them again.
            TopicSetupError: one of `topics`, to which the producer is bound, takes no transactions;
                name another, or run the command of the text.
        """
        self.await_reading()
        self.check_send()
        if self.plain:
            for topic in topics:
                self.check_topic(topic)

    def await_reading(self) -> None:
        """Wait for the first reading, at most FIRST_READ_S; later calls return at once."""
        if self.waits_for_reading:
            self._was_read.wait(FIRST_READ_S)
            self.waits_for_reading = False

    def check_send(self) -> None:
        """Check that a transaction may send.

        Raises TransactionsRejectedError: an operator stopped transactions; nothing was sent; repeat
        the call later.
        """
        refusal = self.refusal
        if refusal is not None:  # a new error for each raise: tracebacks grow on a shared one
            raise TransactionsRejectedError(str(refusal), reason=refusal.reason)

    def check_topic(self, topic: str) -> None:
        """Check that a real topic takes transactions.

        Raises TopicSetupError: an operator made it a plain one; nothing was sent; name another, or
        run the command of the text.
        """
        if topic in self.plain:
            raise TopicSetupError(
                f"topic {topic} is plain, so that transactions do not deliver to it: send to"
                f" another, or run: halfbridge topics create {topic} --type transaction",
                topics=(topic,),
            )

    def refreshed(self) -> None:
        """Record that the settings topic was read, or could not be."""
        self._was_read.set()

    def take_types(self, types: Mapping[str, TopicType | None], *, is_whole: bool) -> None:
        """Take the types that were read; `is_whole`: these are all, and others are none."""
        known = frozenset() if is_whole else self.plain.difference(types)
        self.plain = known.union(topic for topic, kind in types.items() if kind is TopicType.PLAIN)

    def take(self, switched: SwitchRecord | None) -> None:
        """Take the last record of the switch; None: there is none, so that nobody rejects."""
        switch = None if switched is None else switched.switch
        if switched is not None and switched.problem:
            log_safely(
                _LOG.warning,
                "the operators' switch at offset %d cannot be read (%s): transactions are begun",
                switched.offset,
                switched.problem,
            )
        if switch is None or not switch.is_rejecting:
            if self.refusal is not None:
                log_safely(_LOG.info, "operators accept new transactions again")
            self.refusal = None
            return
        reason = one_line(switch.reason)
        text = f"{one_line(switch.who)} stopped new transactions: {reason}"
        if self.refusal is None or str(self.refusal) != text:
            log_safely(_LOG.warning, "%s; open transactions may still be decided", text)
        self.refusal = TransactionsRejectedError(text, reason=reason)


_ASK_S_MIN = 0.1  # a question and its answer take milliseconds; less would fail on a busy broker
_ENDS_S = 10.0  # nobody waits for it


class EndAsker:
    """One client that asks brokers where partitions end, made at its first use. Thread-safe."""

    def __init__(self, config: BridgeConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._now = ports.clock.monotonic
        self._client: Admin | None = None
        self._waker = ports.run.waker()

    def half_end(self, partition: int, *, at_least: int = NO_OFFSET) -> int:
        """Return the last offset of a half partition (high watermark - 1), asked now.

        A broker that reports an end below `at_least`, the offset of a known half message, does not
        know yet that it was deposed: another client's answer is returned. Raises BridgeError: the
        broker did not say; try again later.
        """
        topic = self._config.names.half
        limit_s = max(2 * _ASK_S_MIN, self._config.decision_timeout_ms / MS_PER_S)
        deadline = self._now() + limit_s
        client = self._client_but(None)
        with suppress(BridgeError):
            end = half_end(client, topic, partition, timeout_s=limit_s / 2)
            if end >= at_least:
                return end
        # A client remembers a partition's leader for minutes. Metadata from a broker that was just
        # starting (too few partitions) may be wrong.
        client = self._client_but(client)
        left_s = max(_ASK_S_MIN, deadline - self._now())
        return half_end(client, topic, partition, timeout_s=left_s)

    def ask(self, places: Iterable[TopicPartition], *, new_client: bool) -> Ends:
        """Ask where partitions end; does not wait for the answers.

        A `new_client` asks where this one may remember former leaders. Raises BridgeError,
        KafkaFailure or RuntimeError: the question cannot be sent; try later.
        """
        return Ends(self._client_but(self._client if new_client else None), places, _ENDS_S)

    def hear(self) -> None:
        """Serve the client's reports, now and then: they accumulate while brokers are down."""
        client = self._client
        if client is not None:
            client.poll(0)

    def close(self) -> None:
        """Let the client go; it is destroyed with its last reference."""
        self._client = None

    def _client_but(self, failed: Admin | None) -> Admin:
        """Return the client, a new one in place of `failed`, which other threads may still use."""
        with locked(self._waker):
            client = self._client
            if client is None or client is failed:
                properties = admin_properties(self._config, self._ports.clock)
                client = self._client = self._ports.kafka.admin(properties)
            return client
