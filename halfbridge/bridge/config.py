"""All settings of a producer in one frozen object, checked once; the properties of its clients."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import (
    Collection,  # noqa: TC003  (get_type_hints reads them)
    Mapping,  # noqa: TC003  (get_type_hints reads them)
)
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypedDict

from halfbridge.kafka.error_log import RECONNECTING, ErrorLog
from halfbridge.kafka.errors import ConfigError
from halfbridge.kafka.sending import DURABLE
from halfbridge.serde.limits import TOPIC_CHARS_MAX
from halfbridge.serde.settings import GUARANTEED, check, load, nearest, setting, under_all_names
from halfbridge.serde.topics import TopicNames, holds_internal_name
from halfbridge.serde.units import HOUR_MS

if TYPE_CHECKING:
    from pathlib import Path

    from halfbridge.kafka.ports import Clock

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]*")
_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_SERVERS_HINT = "host:port pairs, as an argument or in HALFBRIDGE_BOOTSTRAP_SERVERS"
# Kafka properties that carry a guarantee, or that a named setting owns.
OWNED_PROPERTIES: Mapping[str, str] = under_all_names(
    {
        **GUARANTEED,
        "bootstrap.servers": "use bootstrap_servers",
        "linger.ms": "use linger_ms",
        "max.in.flight": "use requests_in_flight_max",
        "compression.type": "use compression",
        "delivery.timeout.ms": "use send_timeout_ms and decision_timeout_ms",
        "queue.buffering.max.messages": "use in_flight_max",
        "message.max.bytes": "it follows the half topic's max.message.bytes",
        "retries": "send_timeout_ms bounds retries",
        "transactional.id": "the client needs no kafka_txn",
        "isolation.level": "high watermarks must not be hidden",
        "group.id": "use producer_group",
        "group.instance.id": "a member that closes must leave its group at once",
        "enable.auto.commit": "the check responder owns it",
        "enable.auto.offset.store": "the check responder owns it",
        "auto.offset.reset": "the check responder owns it",
        "delivery.report.only.error": "receipts need every acknowledgement",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeConfig:
    """Settings of a TransactionProducer. `setting` documents each attribute.

    Raises:
        ConfigError: names the setting, its value and the allowed values; the user corrects it.
    """

    refusal = ConfigError

    bootstrap_servers: str = setting("", doc="Kafka brokers, host:port, separated by commas.")
    producer_group: str = setting("", doc="Name of the producer group: who decides, who is asked.")
    topic_prefix: str = setting("", doc="Prefix of all topics and groups of one installation.")
    transaction_timeout_ms: int = setting(
        # Equal to checker/config; RocketMQ's transactionTimeOut.
        6_000,
        minimum=1,
        doc="Age of the first check, milliseconds; equal to the daemon's.",
    )
    transaction_age_ms_max: int = setting(
        # Equal to checker/config; RocketMQ's fileReservedTime.
        72 * HOUR_MS,
        minimum=1,
        doc="Age of a discard, milliseconds; equal to the daemon's.",
    )
    send_timeout_ms: int = setting(
        # Two requests of _REQUEST_TIMEOUT_MS_MAX, so a lost one is repeated in time. Longer blocks
        # callers without a broker, shorter fails sends while a partition changes its leader.
        10_000,
        minimum=10,
        doc="Longest wait for the ack of a half message, milliseconds.",
    )
    decisions: str = setting(
        # Waiting for the acknowledgement costs each transaction a round trip (ADR 29).
        "sent",
        words=("sent", "acknowledged"),
        doc="When commit() and rollback() return: once the decision is sent, or acknowledged.",
    )
    decision_timeout_ms: int = setting(
        # As send_timeout_ms: one writer sends both, and its delivery time-out is the greater one.
        10_000,
        minimum=10,
        doc="Longest wait for the ack of a decision, milliseconds.",
    )
    check_timeout_ms: int = setting(
        # A third of check_interval_ms, so an answer comes before the next request, and above the
        # 4 s that a fence's check needs. Longer finds hung checkers later.
        10_000,
        minimum=1,
        doc="Longest run of the checker before it counts as failed, milliseconds.",
    )
    check_threads: int = setting(
        # RocketMQ's client has 1. With queries of 10 ms, 4 give 400 answers a second; more hold
        # more connections to the database.
        4,
        minimum=1,
        maximum=256,
        doc="Threads that run the checker.",
    )
    check_hung_max: int = setting(
        # Four for each of check_threads. More use more threads and connections of a database that
        # hangs; with fewer a member leaves its group sooner (ADR 8).
        16,
        minimum=0,
        maximum=1_024,
        doc="Checkers beyond check_timeout_ms whose threads are replaced; more cost threads.",
    )
    check_queue_max: int = setting(
        # RocketMQ's checkRequestHoldMax.
        2_000,
        minimum=1,
        doc="Check requests that may wait for a thread; more are refused.",
    )
    in_flight_max: int = setting(
        # Half a second at 20,000 messages a second, 10 MB of messages of 1 KB. More take memory and
        # hide slow brokers longer; fewer block callers sooner.
        10_000,
        minimum=1,
        maximum=1_000_000,
        doc="Unacknowledged records at a time.",
    )
    linger_ms: float = setting(
        # librdkafka's timers count whole milliseconds: 0.5 delayed each acknowledgement by 1.1 ms,
        # twice a transaction (docs/evidence/benchmarks.md).
        0,
        minimum=0,
        maximum=1_000,
        doc="Wait for a batch to fill, milliseconds.",
    )
    requests_in_flight_max: int = setting(
        # A broker works on one request of a connection at a time, and the others wait there as
        # closed batches. Records that wait in the client share a batch with later ones, so near a
        # broker few requests carry more; far from one they leave the connection idle
        # (docs/evidence/benchmarks.md). 5 is the client library's own limit, and the most with
        # which a repeated request keeps the order (KAFKA-5494).
        0,
        minimum=0,
        maximum=5,
        doc="Unanswered requests to a broker at a time; 0: by the distance that start() measures.",
    )
    compression: str = setting(
        "none", words=_COMPRESSIONS, doc=f"Codec on the wire: {', '.join(_COMPRESSIONS)}."
    )
    key_file: str = setting("", doc="File with the keys that sign records; empty: none is signed.")
    kafka: Mapping[str, object] = setting(
        {}, secret=True, doc="Further librdkafka properties, such as security.protocol."
    )

    def __post_init__(self) -> None:
        check(self)
        _require(self.bootstrap_servers, field="bootstrap_servers", allowed=_SERVERS_HINT)
        _require(
            self.producer_group,
            field="producer_group",
            allowed="a name, as an argument or in HALFBRIDGE_PRODUCER_GROUP",
        )
        _check_names(self)
        for name in self.kafka:
            if name in OWNED_PROPERTIES:
                raise _error("kafka", name, f"anything else; {OWNED_PROPERTIES[name]}")

    @property
    def names(self) -> TopicNames:
        """Topic and group names of this installation."""
        return TopicNames(self.topic_prefix)

    @property
    def immunity_ms_max(self) -> int:
        """Longest immunity of a message: half of transaction_age_ms_max."""
        return self.transaction_age_ms_max // 2

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], **given: object) -> BridgeConfig:
        """Return the settings in `environ` (HALFBRIDGE_<FIELD>), overridden by `given`.

        Raises:
            ConfigError: names the variable or argument; the user corrects it.
            TypeError: an argument is no setting; the programmer corrects it.
        """
        refuse_unknown(given)
        try:
            return load(cls, flags=given, environ=environ)
        except ConfigError as error:
            if not error.origin.startswith(("--", "the default")):
                raise
            raise ConfigError(
                field=error.field, value=error.value, origin="argument", allowed=error.allowed
            ) from error


class ClientSettings(TypedDict, total=False):
    """Names and types of BridgeConfig's fields, for type checkers: a misspelled one is an error."""

    bootstrap_servers: str
    producer_group: str
    topic_prefix: str
    transaction_timeout_ms: int
    transaction_age_ms_max: int
    send_timeout_ms: int
    decisions: str
    decision_timeout_ms: int
    check_timeout_ms: int
    check_threads: int
    check_hung_max: int
    check_queue_max: int
    in_flight_max: int
    linger_ms: float
    requests_in_flight_max: int
    compression: str
    key_file: str
    kafka: Mapping[str, object]


def _require(value: str, *, field: str, allowed: str) -> None:
    if not value.strip():
        raise _error(field, value, allowed)


def _check_names(config: BridgeConfig) -> None:
    allowed = (
        f"letters, digits, '.', '_' and '-', so that topic names stay below {TOPIC_CHARS_MAX + 1}"
    )
    longest = len(config.names.check(config.producer_group))
    for field in ("producer_group", "topic_prefix"):
        value = getattr(config, field)
        if not _TOPIC_NAME.fullmatch(value) or longest > TOPIC_CHARS_MAX:
            raise _error(field, value, allowed)
        if holds_internal_name(value):
            raise _error(field, value, "a name without RMQ_SYS_, the prefix of internal topics")


def _error(field: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(field=field, value=repr(value), origin="argument", allowed=allowed)


def refuse_unknown(given: Collection[str]) -> None:
    """Refuse names that are no settings of the client, naming the nearest one.

    Raises TypeError: the programmer corrects the name.
    """
    known = [each.name for each in fields(BridgeConfig)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        texts = [f"{name} ({near})" if (near := nearest(name, known)) else name for name in unknown]
        raise TypeError(f"no such setting: {', '.join(texts)}")


_LOG = logging.getLogger("halfbridge.kafka")
# Half of the client library's default. A process that cannot send holds at most 512 MiB of bodies.
_QUEUE_KBYTES_MAX = 512 * 1024
_REQUEST_TIMEOUT_MS_MAX = 5_000  # leaves room for a retry within the delivery time-out
_SESSION_TIMEOUT_MS = 6_000  # the least that brokers allow: a killed member's checks move on
_METADATA_MS = 10_000  # how soon a member sees that its topic was created or grew; default: 5 min
_CONSUMER_ONLY = (
    "session.",
    "heartbeat.",
    "max.poll.",
    "partition.assignment.",
    "fetch.",
    "queued.",
)


def admin_properties(config: BridgeConfig, clock: Clock) -> dict[str, object]:
    """Return the properties of a client that lists topics and asks where logs end."""
    return {**_common(config, consumer=False), "error_cb": ErrorLog(_LOG, clock).note}


# Below this round trip a broker is near: beyond it, two requests in flight do less than five, which
# are the most that an idempotent producer may have (max.in.flight.requests.per.connection).
_NEAR_S = 0.001
_REQUESTS_NEAR = 2
_REQUESTS_FAR = 5


def requests_in_flight(config: BridgeConfig, round_trip_s: float) -> int:
    """Return how many requests may be unanswered: as configured, else by the distance."""
    if config.requests_in_flight_max:
        return config.requests_in_flight_max
    return _REQUESTS_NEAR if round_trip_s < _NEAR_S else _REQUESTS_FAR


def writer_properties(
    config: BridgeConfig, clock: Clock, *, message_bytes_max: int, round_trip_s: float
) -> dict[str, object]:
    """Return the properties of the idempotent writer that all transactions of a producer share.

    `round_trip_s` is the time in which a near broker answers.
    """
    delivery_ms = max(config.send_timeout_ms, config.decision_timeout_ms)
    return {
        "socket.keepalive.enable": True,
        **_common(config, consumer=False),
        **DURABLE,
        "linger.ms": config.linger_ms,
        "max.in.flight": requests_in_flight(config, round_trip_s),
        "compression.type": config.compression,
        "delivery.timeout.ms": delivery_ms,
        "request.timeout.ms": max(1, min(_REQUEST_TIMEOUT_MS_MAX, delivery_ms)),
        "message.max.bytes": message_bytes_max,
        # Twice, because the delivery callback of each half message may send a decision.
        "queue.buffering.max.messages": 2 * config.in_flight_max,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES_MAX,
        "error_cb": ErrorLog(_LOG, clock).note,
    }


def checks_properties(config: BridgeConfig, clock: Clock) -> dict[str, object]:
    """Return the properties of the group member that reads the check topic.

    A group without offsets starts at the earliest request, so that requests from before its start
    are answered at once; the topic's short retention bounds their number. Offsets are committed
    automatically: the daemon repeats a request that is lost in a crash.

    A damaged record may abort the process, which is the user's service. librdkafka (up to 2.16)
    aborts when it verifies a checksum, and on zeros between two batches of one answer
    (docs/evidence/librdkafka-crc-report.md). So checksums are not verified, and an answer has one
    batch: its broker has checked the first batch, and returns an error for zeros.
    """
    return {
        "session.timeout.ms": _SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": _SESSION_TIMEOUT_MS // 3,
        **_common(config, consumer=True),
        "group.id": config.names.check_group(config.producer_group),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": True,
        "enable.partition.eof": True,  # adds records whose error has the code PARTITION_EOF
        "isolation.level": "read_uncommitted",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": _METADATA_MS,
        "check.crcs": False,
        "max.partition.fetch.bytes": 1,  # a broker returns one batch at least
        "error_cb": ErrorLog(_LOG, clock).note,
    }


def letters_properties(config: BridgeConfig, clock: Clock) -> dict[str, object]:
    """Return the properties of the group member by which relays read the dead-letter topic."""
    return {
        **reader_properties(config, clock),
        "group.id": config.names.relay_group(config.producer_group),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": _METADATA_MS,
    }


def reader_properties(config: BridgeConfig, clock: Clock) -> dict[str, object]:
    """Return the properties of a reader with the rights of the check group; it never joins."""
    return {
        "session.timeout.ms": _SESSION_TIMEOUT_MS,  # compared with the user's max.poll.interval.ms
        **_common(config, consumer=True),
        "group.id": config.names.check_group(config.producer_group),
        "error_cb": ErrorLog(_LOG, clock).note,
    }


def _common(config: BridgeConfig, *, consumer: bool) -> dict[str, object]:
    passed = {
        name: value
        for name, value in config.kafka.items()
        if consumer or not name.startswith(_CONSUMER_ONLY)
    }
    return {
        "client.id": f"halfbridge-{config.producer_group}",
        **RECONNECTING,
        **passed,
        "bootstrap.servers": config.bootstrap_servers,
    }


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> Mapping[str, object]:
    """Return the table in a TOML file. ConfigError: the user corrects the file or path."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            field="config",
            value=repr(str(path)),
            origin="--config or HALFBRIDGE_CONFIG",
            allowed=f"a readable TOML file; this one: {error}",
        ) from error
