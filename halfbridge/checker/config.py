"""All settings of the daemon, as one frozen object that is validated once."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 (the loader asks for the hints)
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (as above)

from halfbridge.kafka.errors import ConfigError
from halfbridge.logs import LOG_FORMATS, LOG_LEVELS
from halfbridge.serde.delivery import DELIVERIES, Delivery
from halfbridge.serde.settings import GUARANTEED, check, setting, under_all_names
from halfbridge.serde.topics import TopicNames, holds_internal_name
from halfbridge.serde.units import HOUR_MS, KIB, MIB, MINUTE_MS, MS_PER_S

# Kafka's transaction.max.timeout.ms, beyond which the broker refuses a transactional producer.
_KAFKA_TXN_TIMEOUT_MS_MAX = 15 * MINUTE_MS
# In measurements more than three producers in turn gained nothing.
_PRODUCERS_MAX = 4
_PORT_MAX = 65535  # ports of TCP are 16 bits
# A million undecided transactions of one message take 1.25 GB, and a million decided ones that a
# rebuild needs take 0.75 GB (halfbridge.checker.core.events). Together they are 85 % of this.
_ENTRIES_BYTES_MAX = 2304 * MIB
ENTRIES_BYTES_MIN = 64 * KIB  # some fifty undecided transactions: enough for a test

# Client properties on which exactly-once delivery depends; the daemon sets them.
OWNED_KAFKA_KEYS = under_all_names(
    {
        "bootstrap.servers": "bootstrap_servers",
        "session.timeout.ms": "session_timeout_ms",
        "transaction.timeout.ms": "kafka_txn_timeout_ms",
        "transactional.id": "slot",
        "group.instance.id": "slot",
        "group.id": "topic_prefix",
    }
)
UNSAFE_KAFKA_KEYS = frozenset(
    under_all_names(
        dict.fromkeys(
            (
                *GUARANTEED,
                *("retries", "delivery.timeout.ms", "isolation.level", "auto.offset.reset"),
                *("enable.partition.eof", "enable.auto.commit", "enable.auto.offset.store"),
                *("partition.assignment.strategy", "group.protocol", "group.remote.assignor"),
                *("consume.callback.max", "on_delivery", "dr_cb", "error_cb", "logger"),
            ),
            "exactly-once delivery rests on it",
        )
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckerConfig:
    """Settings of the daemon; every field is a flag, a HALFBRIDGE_ variable and a TOML key.

    Raises ConfigError if a field is wrong, or two contradict each other; the operator corrects
    them.
    """

    refusal = ConfigError

    bootstrap_servers: str = setting("localhost:9092", doc="Kafka brokers, host:port,host:port.")
    topic_prefix: str = setting("", doc="Prefix of all internal topics, groups and ids.")
    delivery: str = setting(
        Delivery.EXACTLY_ONCE.value,
        words=DELIVERIES,
        doc="How often a message may be delivered; the same in all workers.",
    )
    transaction_timeout_ms: int = setting(
        # RocketMQ's transactionTimeOut.
        6 * MS_PER_S,
        doc="Age of a half message at its first check, ms.",
        minimum=1,
    )
    check_interval_ms: int = setting(
        # RocketMQ's transactionCheckInterval, since its release 5.
        30 * MS_PER_S,
        doc="Interval after an unanswered or UNKNOWN check, ms.",
        minimum=1,
    )
    check_count_max: int = setting(
        # RocketMQ's transactionCheckMax. Only counted answers UNKNOWN count (D-003).
        15,
        doc="Answered checks after which a transaction is given up.",
        minimum=1,
    )
    transaction_age_ms_max: int = setting(
        # RocketMQ's fileReservedTime. Members may be down for a long weekend.
        72 * HOUR_MS,
        doc="Age at which an unanswered transaction is given up, ms.",
        minimum=1,
    )
    check_backoff_ms_max: int = setting(
        # A service that is down is asked six times an hour (D-019). Longer delays the check after
        # its return, shorter costs requests.
        10 * MINUTE_MS,
        doc="Longest interval between unanswered checks, ms.",
        minimum=1,
    )
    check_rate_max: int = setting(
        # As many as the messages that one worker has delivered a second (docs/how-to/size.md).
        # Slow groups are asked as they answer; lower spares the databases of the checkers.
        20_000,
        doc="Check requests a second and worker, most.",
        minimum=1,
    )
    republish_window_records: int = setting(
        # A restart read 34,000 undecided transactions a second (docs/evidence/scale.md), so some
        # 3 s a partition. Smaller puts messages back, and writes their bodies, more often.
        100_000,
        doc="Records a restart may have to read again, a partition.",
        minimum=1,
    )
    republish_window_bytes: int = setting(
        # The window in records, for records of 1.3 KB.
        128 * MIB,
        doc="Bytes a restart may have to read again, a partition.",
        minimum=1,
    )
    ledger_bytes_max: int = setting(
        # Each of four pairs, the default number, has two batches of batch_bytes_max. Bodies beyond
        # it are read again, so less memory costs reads.
        128 * MIB,
        doc="Bytes of message bodies held in memory, a worker.",
        minimum=MIB,
    )
    entries_bytes_max: int = setting(
        _ENTRIES_BYTES_MAX,
        doc="Bytes of entries (all but bodies) held in memory, a worker (an estimate).",
        minimum=ENTRIES_BYTES_MIN,
    )
    kafka_txn_timeout_ms: int = setting(
        # A third of Kafka's default. Longer holds back readers (read_committed) of what a dead
        # worker has begun; shorter aborts batches of slow brokers, which are then repeated.
        20 * MS_PER_S,
        doc="How long a dead worker's kafka_txn can hold back readers, ms.",
        minimum=MS_PER_S,
        maximum=_KAFKA_TXN_TIMEOUT_MS_MAX,
    )
    batch_records_max: int = setting(
        # Five transactions of the most messages. More delay readers, who see a batch when all of it
        # is committed; fewer pay for a kafka_txn more often.
        5000,
        doc="Records in one kafka_txn.",
        minimum=1,
    )
    batch_bytes_max: int = setting(
        # Two transactions of the most bytes; the trade-off of batch_records_max.
        16 * MIB,
        doc="Bytes in one kafka_txn.",
        minimum=KIB,
    )
    transactional_producers: int = setting(
        # With one, the next kafka_txn meets CONCURRENT_TRANSACTIONS while the broker still writes
        # the markers of the last one (DESIGN.md). More cost transactional ids and connections.
        2,
        doc="Transactional producers that take turns.",
        minimum=1,
        maximum=_PRODUCERS_MAX,
    )
    session_timeout_ms: int = setting(
        # Kafka's default until 3.0 (KIP-735). Longer delays the takeover from a dead worker,
        # shorter moves partitions at a restart, for which a worker takes up to 10 s.
        10 * MS_PER_S,
        doc="Silence after which a worker loses its partitions, ms.",
        minimum=MS_PER_S,
    )
    readiness_before_discard_ms: int = setting(
        # After a long outage everything is too old at once. Members that come back within an hour
        # can still answer; longer keeps abandoned transactions.
        HOUR_MS,
        doc="Least readiness of a worker that gives up for age, ms.",
        minimum=0,
    )
    unanswered_before_discard: int = setting(
        # One request may be lost, and the next may meet a rebalance. More delay the discard: the
        # interval between requests doubles.
        3,
        doc="Unanswered checks needed to give up for age.",
        minimum=0,
    )
    topic_gone_ms: int = setting(
        # Time to create a topic again that was deleted by mistake. Longer lets more deliveries wait
        # (ADR 25), shorter makes dead letters that an operator must resume.
        MINUTE_MS,
        doc="Time after which a missing real topic is given up, ms.",
        minimum=0,
    )
    slot: str = setting("", doc="Stable name of this worker; empty claims <host>-<n>.")
    state_dir: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="Directory of the slot locks; default $XDG_STATE_HOME/halfbridge."
    )
    workers: int = setting(1, doc="Worker processes.", minimum=1, maximum=64)
    metrics_port: int = setting(
        0, doc="Port of /metrics, /healthz, /readyz; 0 for none.", minimum=0, maximum=_PORT_MAX
    )
    metrics_host: str = setting("127.0.0.1", doc="Address of the metrics port.")
    admin_port: int = setting(
        0, doc="Port of the API and the web page; 0 for none.", minimum=0, maximum=_PORT_MAX
    )
    admin_host: str = setting("127.0.0.1", doc="Address of the admin port.")
    admin_tokens: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="File of bearer tokens, one 'ROLE TOKEN [NAME]' a line; roles: read, operate."
    )
    admin_cert: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="File of the admin port's TLS certificate chain, PEM."
    )
    admin_key: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="File of the certificate's private key, PEM."
    )
    allow_changes: bool = setting(
        default=False, doc="Let the web page make changes, for who has the role operate."
    )
    policy_file: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="TOML file: which group may deliver to which topics."
    )
    key_file: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="TOML file: keys that sign records, and of whom signatures are demanded."
    )
    leave: bool = setting(
        default=False, doc="Leave the group on SIGTERM: for good, not for a restart."
    )
    log_level: str = setting("info", words=LOG_LEVELS, doc="debug, info, warning or error.")
    log_format: str = setting("text", words=LOG_FORMATS, doc="text, or json: one event a line.")
    tracing: bool = setting(
        default=False, doc="Make spans of deliveries and checks, with OpenTelemetry."
    )
    kafka: Mapping[str, str] = setting(
        {}, doc="More Kafka client properties, such as security ones, name=value.", secret=True
    )

    def __post_init__(self) -> None:
        check(self)
        _check_texts(self)
        _check_order(self)
        _check_kafka(self.kafka)

    @property
    def names(self) -> TopicNames:
        """Names of the installation's topics and groups."""
        return TopicNames(self.topic_prefix)


def _check_texts(config: CheckerConfig) -> None:
    if not config.bootstrap_servers.strip():
        raise _wrong("bootstrap_servers", "''", "host:port, several separated by commas")
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    if not set(config.topic_prefix) <= allowed:
        raise _wrong("topic_prefix", repr(config.topic_prefix), "letters, digits, '.', '_', '-'")
    if holds_internal_name(config.topic_prefix):
        raise _wrong("topic_prefix", repr(config.topic_prefix), "a name without RMQ_SYS_")


def _check_order(config: CheckerConfig) -> None:
    """Check the pairs of settings of which the first must not exceed the second."""
    for low, high, why in (
        ("transaction_timeout_ms", "transaction_age_ms_max", "no transaction would be checked"),
        ("check_interval_ms", "check_backoff_ms_max", "the interval only grows"),
        ("batch_bytes_max", "ledger_bytes_max", "a batch must fit into memory"),
        ("batch_records_max", "republish_window_records", "a window is at least one batch"),
    ):
        first, second = getattr(config, low), getattr(config, high)
        if first > second:
            raise _wrong(
                low, str(first), f"at most {high}, which is {second} ({why}); change one of the two"
            )


def _check_kafka(kafka: Mapping[str, str]) -> None:
    for key in kafka:
        if key in OWNED_KAFKA_KEYS:
            raise _wrong("kafka", repr(key), f"the setting {OWNED_KAFKA_KEYS[key]} instead of it")
        if key in UNSAFE_KAFKA_KEYS:
            raise _wrong("kafka", repr(key), "all but what exactly-once delivery rests on")


def _wrong(field: str, value: str, allowed: str) -> ConfigError:
    return ConfigError(field=field, value=value, origin="the configuration", allowed=allowed)
