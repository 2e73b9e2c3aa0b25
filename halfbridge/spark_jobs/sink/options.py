"""The options of `format("txn_half")`, checked once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping  # noqa: TC003 (a field's type)
from dataclasses import dataclass, replace

from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX
from halfbridge.serde.settings import GUARANTEED, describe, load, nearest, setting, under_all_names
from halfbridge.serde.topics import TopicNames, holds_internal_name
from halfbridge.serde.units import HOUR_MS, MINUTE_MS
from halfbridge.spark_jobs.sink.errors import SinkOptionError

FORMAT = "txn_half"

# Least age before the first check: how long a batch may run before a check. Twice the five minutes
# of a long micro-batch. An earlier check does no harm (its answer does not count). A later check
# only delays the end of transactions of a driver that died and was not restarted.
IMMUNITY_MS = 10 * MINUTE_MS
_DAEMON_AGE_MS_MAX = 72 * HOUR_MS  # the daemon's default of transaction_age_ms_max
# A third of the age at which the daemon gives up half messages, which leaves room for the daemon's
# clock and its last checks. A batch needs far less.
AGE_MS_MAX = 24 * HOUR_MS
SEND_TIMEOUT_MS = 120_000  # as delivery.timeout.ms of Spark's own Kafka sink
COMMIT_TIMEOUT_MS = 60_000  # half of it: records are stored, and decisions are small

_NAME = re.compile(r"[A-Za-z0-9._-]{1,150}")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,50}")
BATCH_ID_MAX = (1 << 63) - 1  # Spark's batch id is a Java long
# Options that Spark adds.
_CHECKPOINT = "checkpointlocation"
_SPARKS = frozenset((_CHECKPOINT, "path", "queryname"))
_NAME_IN_WORDS = "at most 150 letters, digits, '.', '_' and '-', no RMQ_SYS_"

_SERVERS = "kafka.bootstrap.servers"
# Option -> its description.
_REQUIRED = {
    "app.id": "a name of the query that stays the same over restarts and that no other query has",
    _SERVERS: "host:port, separated by commas",
}
_PEM = "use kafka.ssl.ca.location, a PEM file"
_SENT_AS_THEY_ARE = "keys and values are sent as they are, like in Spark's own sink"

# Kafka properties that carry a guarantee, or that an option owns, and what to do instead.
_OWNED = under_all_names(
    {
        **GUARANTEED,
        "retries": "send.timeout.ms bounds retries",
        "delivery.timeout.ms": "use the option send.timeout.ms",
        "transactional.id": "the sink needs no Kafka transaction",
        "isolation.level": "the sink owns its consumer",
        "group.id": "use the option producer.group",
        "message.max.bytes": "it follows the half topic's max.message.bytes",
        # Names of the Java client, which librdkafka does not have.
        "partitioner.class": GUARANTEED["partitioner"],
        "key.serializer": _SENT_AS_THEY_ARE,
        "value.serializer": _SENT_AS_THEY_ARE,
        "sasl.jaas.config": "use kafka.sasl.username and kafka.sasl.password",
        "ssl.truststore.location": _PEM,
        "ssl.truststore.password": _PEM,
        "ssl.truststore.type": _PEM,
        "ssl.keystore.type": (
            "use kafka.ssl.certificate.location and kafka.ssl.key.location, PEM files"
        ),
    }
)


def _refusal(*, field: str, value: str, origin: str, allowed: str) -> SinkOptionError:
    del field  # users know the option, which `origin` names
    return SinkOptionError(f"{origin} is {value}; allowed: {allowed}")


def _spelled(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: bool(pattern.fullmatch(text)) and not holds_internal_name(text)


def _is_batch_number(number: int) -> bool:
    return 0 <= number <= BATCH_ID_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a query's sink. Picklable, for executors."""

    refusal = staticmethod(_refusal)

    app_id: str = setting(
        "",
        option="app.id",
        holds=_spelled(_NAME),
        in_words=_NAME_IN_WORDS,
        doc="Identity of the query over restarts; (app_id, batch) is published once.",
    )
    bootstrap_servers: str = setting("", option=_SERVERS, doc="host:port, separated by commas.")
    topic: str | None = setting(
        None, option="topic", doc="Real topic of all rows, or None: the column `topic`."
    )
    prefix: str = setting(
        "",
        option="halfbridge.prefix",
        holds=_spelled(_PREFIX),
        in_words="at most 50 letters, digits, '.', '_' and '-'",
        doc="Prefix of the installation's topics.",
    )
    producer_group: str = setting(
        "",
        option="producer.group",
        holds=_spelled(_NAME),
        in_words=_NAME_IN_WORDS,
        doc="Producer group of the half messages, which answers their checks; spark-<app.id> if"
        " empty.",
    )
    batch_id: int | None = setting(
        None,
        option="batch.id",
        holds=_is_batch_number,
        in_words="a whole number, larger than that of any earlier write",
        doc="Identity of a batch write; None for a stream, which has Spark's.",
    )
    first_batch: int = setting(
        0,
        option="first.batch",
        holds=_is_batch_number,
        in_words="a whole number, as the refusal of a batch names it",
        doc="For a stream: no batch before this one was written through this sink.",
    )
    keeps_first: bool = setting(
        default=False,
        option="on.mismatch",
        words=("fail", "keep-first"),
        doc="For a stream: if a batch is run again by the same plan and has other rows, those"
        " that were published first are kept, and the query continues.",
    )
    fails_on_refused: bool = setting(
        default=False,
        option="fail.on.refused",
        words=("false", "true"),
        doc="Rows that were published and became dead letters fail the query.",
    )
    refused_wait_ms: int = setting(
        0,
        option="refused.wait.ms",
        minimum=0,
        maximum=HOUR_MS,
        doc="Longest wait for the daemon to deliver a batch, to count the refused messages, ms.",
    )
    checkpoint: str = setting(
        "",
        option=_CHECKPOINT,
        doc="Spark's option checkpointLocation; empty where the session has it.",
    )
    immunity_ms: int = setting(
        IMMUNITY_MS,
        option="check.immunity.ms",
        minimum=0,
        maximum=_DAEMON_AGE_MS_MAX // 2,
        doc="Least age before the first check, ms.",
    )
    age_ms_max: int = setting(
        AGE_MS_MAX,
        option="batch.age.max.ms",
        minimum=1_000,
        maximum=_DAEMON_AGE_MS_MAX // 2,
        doc="Age of half messages at which a batch can be committed no more, ms.",
    )
    send_timeout_ms: int = setting(
        SEND_TIMEOUT_MS,
        option="send.timeout.ms",
        minimum=100,
        maximum=HOUR_MS,
        doc="Longest wait for the brokers to store half messages, ms.",
    )
    commit_timeout_ms: int = setting(
        COMMIT_TIMEOUT_MS,
        option="commit.timeout.ms",
        minimum=100,
        maximum=HOUR_MS,
        doc="Longest wait for a manifest or for decisions, ms.",
    )
    key_file: str = setting(
        "",
        option="key.file",
        doc="Path of the file with the group's signing key, the same on the driver and on every"
        " executor; empty: no record is signed.",
    )
    messages_max: int = setting(
        TRANSACTION_MESSAGES_MAX,
        option="transaction.messages.max",
        minimum=1,
        maximum=TRANSACTION_MESSAGES_MAX,
        doc="Messages of one transaction.",
    )
    kafka: Mapping[str, str] = setting(
        {}, secret=True, doc="Further librdkafka properties, without `kafka.`."
    )

    @property
    def names(self) -> TopicNames:
        """Names of the installation's topics and groups."""
        return TopicNames(self.prefix)

    def follows_another(self, batch_id: int) -> bool:
        """Tell whether the app must have published a batch before this one.

        Spark numbers a stream's batches from 0 without a gap; writes are numbered by their users.
        """
        return self.batch_id is None and batch_id > self.first_batch

    def client_key(self) -> tuple[object, ...]:
        """Return a key that is equal for two queries if they can share clients."""
        kafka = tuple(sorted(self.kafka.items()))
        return (self.bootstrap_servers, self.prefix, self.send_timeout_ms, self.key_file, kafka)


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of a query; upper and lower case of names do not matter.

    Raises SinkOptionError: an option is wrong, unknown or missing; the author of the query corrects
    it.
    """
    options = {name.lower(): str(value).strip() for name, value in given.items()}
    kafka = {
        name.removeprefix("kafka."): value
        for name, value in options.items()
        if name.startswith("kafka.") and name != _SERVERS
    }
    for name in sorted(kafka):
        if name in _OWNED:
            raise SinkOptionError(f"option kafka.{name} cannot be set: {_OWNED[name]}")
    _refuse_unknown(options)
    for name, meaning in _REQUIRED.items():
        if not options.get(name):
            raise SinkOptionError(f'format("{FORMAT}") needs the option {name}: {meaning}')
    read = load(SinkOptions, options=options)
    if read.age_ms_max < read.immunity_ms:
        raise SinkOptionError("option batch.age.max.ms must not be less than check.immunity.ms")
    group = read.producer_group or f"spark-{read.app_id}"
    return replace(read, producer_group=group, kafka=kafka)


OPTIONS = tuple(
    each.option for each in describe(SinkOptions) if each.option not in ("", _CHECKPOINT)
)


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for name in sorted(options.keys() - set(OPTIONS) - _SPARKS):
        if name.startswith("kafka."):
            continue
        hint = nearest(name, OPTIONS) or f"known: kafka.*, {', '.join(OPTIONS)}"
        raise SinkOptionError(f'format("{FORMAT}") has no option {name}; {hint}')
