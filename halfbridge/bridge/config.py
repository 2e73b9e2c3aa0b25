"""All settings of a producer, in one frozen object, checked once."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping  # noqa: TC003  (get_type_hints reads them)
from dataclasses import dataclass, fields

from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.kafka_properties import GUARANTEED, under_all_names
from halfbridge.serde.limits import TOPIC_CHARS_MAX
from halfbridge.serde.settings import check, load, nearest, setting
from halfbridge.serde.topics import TopicNames, holds_internal_name

_HOUR_MS = 3_600_000
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
        ConfigError: names the setting, the value and what is allowed; the user corrects it.
    """

    refusal = ConfigError

    bootstrap_servers: str = setting("", doc="Kafka brokers, host:port, separated by commas.")
    producer_group: str = setting("", doc="Name of the producer group: who decides, who is asked.")
    topic_prefix: str = setting("", doc="Prefix of all topics and groups of one installation.")
    transaction_timeout_ms: int = setting(
        6_000, minimum=1, doc="Age of the first check, milliseconds; equal to the daemon's."
    )
    transaction_age_ms_max: int = setting(
        72 * _HOUR_MS, minimum=1, doc="Age of a discard, milliseconds; equal to the daemon's."
    )
    send_timeout_ms: int = setting(
        10_000, minimum=10, doc="Longest wait for the ack of a half message, milliseconds."
    )
    decision_timeout_ms: int = setting(
        10_000, minimum=10, doc="Longest wait for the ack of a decision, milliseconds."
    )
    check_timeout_ms: int = setting(
        10_000,
        minimum=1,
        doc="Longest run of the checker before it counts as failed, milliseconds.",
    )
    check_threads: int = setting(4, minimum=1, maximum=256, doc="Threads that run the checker.")
    check_hung_max: int = setting(
        16,
        minimum=0,
        maximum=1_024,
        doc="Checkers beyond check_timeout_ms whose threads are replaced; more cost threads.",
    )
    check_queue_max: int = setting(
        2_000, minimum=1, doc="Check requests that may wait for a thread; more are refused."
    )
    in_flight_max: int = setting(
        10_000, minimum=1, maximum=1_000_000, doc="Unacknowledged records at a time."
    )
    linger_ms: float = setting(
        # librdkafka's timers count whole milliseconds: 0.5 delayed each acknowledgement by 1.1 ms,
        # twice a transaction (docs/benchmarks.md).
        0,
        minimum=0,
        maximum=1_000,
        doc="Wait for a batch to fill, milliseconds.",
    )
    requests_in_flight_max: int = setting(
        # The client library's own limit, and the most with which a repeated request keeps the order
        # (KAFKA-5494). A broker works on one request of a connection at a time, and the others wait
        # there as closed batches. Records that wait in the client share a batch with later ones.
        # With 2, 32 blocking threads do 40 % more near a broker, 12 to 42 % less far from one
        # (docs/benchmarks.md).
        5,
        minimum=1,
        maximum=5,
        doc="Unanswered requests to a broker at a time; 2 makes larger batches near a broker.",
    )
    compression: str = setting(
        "none", words=_COMPRESSIONS, doc=f"Codec on the wire: {', '.join(_COMPRESSIONS)}."
    )
    key_file: str = setting("", doc="File with the keys that sign records; empty: none is signed.")
    kafka: Mapping[str, str] = setting(
        {}, secret=True, doc="Further librdkafka properties, such as security.protocol."
    )

    def __post_init__(self) -> None:
        """Check every field, and the fields that depend on each other."""
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
            raise _error(field, value, "a name without RMQ_SYS_, which stands for internal topics")


def _error(field: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(field=field, value=repr(value), origin="argument", allowed=allowed)


def refuse_unknown(given: Collection[str]) -> None:
    """Refuse names that are no settings of the client.

    Raises:
        TypeError: the programmer corrects the argument; the text names the nearest setting.
    """
    known = [each.name for each in fields(BridgeConfig)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        texts = [f"{name} ({near})" if (near := nearest(name, known)) else name for name in unknown]
        raise TypeError(f"no such setting: {', '.join(texts)}")
