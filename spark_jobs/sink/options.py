"""The options of `format("txn_half")`, checked once."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 (a field's type)
from dataclasses import dataclass, field
from difflib import get_close_matches

from halfbridge.serde.limits import TRANSACTION_MESSAGES_MAX
from halfbridge.serde.topics import TopicNames, holds_internal_name
from halfbridge.spark_jobs.sink.errors import SinkOptionError

FORMAT = "txn_half"
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS

# Least age before the first check. A half message is sent at any moment of its batch, so this is
# how long a batch may run before anybody asks: twice the five minutes of a long micro-batch. To be
# asked earlier does no harm (the answer does not count); to be asked later only delays what a
# driver left behind that died and was not started again.
IMMUNITY_MS = 10 * _MINUTE_MS
_DAEMON_AGE_MS_MAX = 72 * _HOUR_MS  # the daemon's default of transaction_age_ms_max
# A third of the age at which the daemon gives half messages up: that leaves room for the daemon's
# clock and its last checks, and is far more than a batch takes.
AGE_MS_MAX = 24 * _HOUR_MS
SEND_TIMEOUT_MS = 120_000  # as delivery.timeout.ms of Spark's own Kafka sink
COMMIT_TIMEOUT_MS = 60_000

_NAME = re.compile(r"[A-Za-z0-9._-]{1,150}")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,50}")
BATCH_ID_MAX = (1 << 63) - 1
# What Spark adds on its own.
_CHECKPOINT = "checkpointlocation"
_SPARKS = frozenset((_CHECKPOINT, "path", "queryname"))
FAIL, KEEP_FIRST = "fail", "keep-first"

# Option -> (least, greatest, default), all whole numbers.
_NUMBERS = {
    "check.immunity.ms": (0, _DAEMON_AGE_MS_MAX // 2, IMMUNITY_MS),
    "batch.age.max.ms": (1_000, _DAEMON_AGE_MS_MAX // 2, AGE_MS_MAX),
    "send.timeout.ms": (100, _HOUR_MS, SEND_TIMEOUT_MS),
    "commit.timeout.ms": (100, _HOUR_MS, COMMIT_TIMEOUT_MS),
    "refused.wait.ms": (0, _HOUR_MS, 0),
    "transaction.messages.max": (1, TRANSACTION_MESSAGES_MAX, TRANSACTION_MESSAGES_MAX),
}
_TEXTS = (
    "app.id",
    "topic",
    "halfbridge.prefix",
    "producer.group",
    "batch.id",
    "first.batch",
    "on.mismatch",
    "fail.on.refused",
)
_SERVERS = "kafka.bootstrap.servers"
OPTIONS = (_SERVERS, *_TEXTS, *_NUMBERS)

# Kafka properties that carry a guarantee, or that an option owns, and what to do instead.
_OWNED = {
    "acks": "a half message must be durable",
    "request.required.acks": "a half message must be durable",
    "enable.idempotence": "a retry must not store twice",
    "enable.gapless.guarantee": "a lost message must not be passed over",
    "max.in.flight": "a retry must not change the order",
    "max.in.flight.requests.per.connection": "a retry must not change the order",
    "retries": "send.timeout.ms bounds retries",
    "message.send.max.retries": "send.timeout.ms bounds retries",
    "delivery.timeout.ms": "use the option send.timeout.ms",
    "message.timeout.ms": "use the option send.timeout.ms",
    "transactional.id": "the sink needs no Kafka transaction",
    "partitioner": "the half partition is part of the protocol",
    "partitioner.class": "the half partition is part of the protocol",
    "isolation.level": "the sink owns its consumer",
    "group.id": "use the option producer.group",
    "allow.auto.create.topics": "nothing relies on auto-creation",
    "message.max.bytes": "it follows the half topic's max.message.bytes",
    "key.serializer": "keys and values are sent as they are, like in Spark's own sink",
    "value.serializer": "keys and values are sent as they are, like in Spark's own sink",
    # Java's names for what librdkafka, which this sink uses, calls otherwise.
    "sasl.jaas.config": "use kafka.sasl.username and kafka.sasl.password",
    "ssl.truststore.location": "use kafka.ssl.ca.location, a PEM file",
    "ssl.truststore.password": "use kafka.ssl.ca.location, a PEM file",
    "ssl.truststore.type": "use kafka.ssl.ca.location, a PEM file",
    "ssl.keystore.type": "use kafka.ssl.certificate.location and kafka.ssl.key.location, PEM files",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a query says about its sink. Picklable: executors get it too.

    Attributes:
        app_id: Identity of the query over restarts; (app_id, batch) is published once.
        bootstrap_servers: `host:port`, separated by commas.
        topic: Real topic of all rows, or None: the column `topic`.
        prefix: Of the installation's topics.
        producer_group: Under which the half messages stand and are asked about.
        batch_id: Identity of a batch write; None for a stream, which has Spark's.
        first_batch: Of a stream: no batch before this one was written through this sink.
        keeps_first: Of a stream: where a batch is run again by the same plan and has other rows,
            those that were published first stand, and the query goes on.
        fails_on_refused: Rows that were published and became dead letters fail the query.
        refused_wait_ms: Longest wait for the daemon to deliver a batch, to count what it refuses.
        checkpoint: Spark's option checkpointLocation; empty where the session has it.
        immunity_ms: Least age before the first check.
        age_ms_max: Age of half messages at which a batch can be committed no more.
        send_timeout_ms: Longest wait for the brokers to take half messages.
        commit_timeout_ms: Longest wait for a manifest or for decisions.
        messages_max: Messages of one transaction.
        kafka: Further librdkafka properties, without `kafka.`.
    """

    app_id: str
    bootstrap_servers: str
    topic: str | None
    prefix: str
    producer_group: str
    batch_id: int | None
    first_batch: int
    keeps_first: bool
    fails_on_refused: bool
    refused_wait_ms: int
    checkpoint: str
    immunity_ms: int
    age_ms_max: int
    send_timeout_ms: int
    commit_timeout_ms: int
    messages_max: int
    kafka: Mapping[str, str] = field(repr=False)  # may hold passwords

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
        """Return what tells clients apart that cannot be shared."""
        kafka = tuple(sorted(self.kafka.items()))
        return (self.bootstrap_servers, self.prefix, self.send_timeout_ms, kafka)


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options of a query, whose names may be in any case.

    Raises:
        SinkOptionError: one is missing, wrong or unknown; whoever wrote the query corrects it.
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
    app_id = _name(options, "app.id")
    prefix = options.get("halfbridge.prefix", "")
    if not _PREFIX.fullmatch(prefix) or holds_internal_name(prefix):
        raise _wrong("halfbridge.prefix", prefix, "at most 50 letters, digits, '.', '_' and '-'")
    numbers = {name: _number(options, name) for name in _NUMBERS}
    if numbers["batch.age.max.ms"] < numbers["check.immunity.ms"]:
        raise SinkOptionError("option batch.age.max.ms must not be less than check.immunity.ms")
    return SinkOptions(
        app_id=app_id,
        bootstrap_servers=_required(options, _SERVERS, "host:port, separated by commas"),
        topic=options.get("topic") or None,
        prefix=prefix,
        producer_group=_name({"producer.group": f"spark-{app_id}", **options}, "producer.group"),
        batch_id=_batch_number(options, "batch.id", "larger than that of any earlier write"),
        first_batch=_batch_number(options, "first.batch", "as the refusal of a batch names it")
        or 0,
        keeps_first=_choice(options, "on.mismatch", FAIL, KEEP_FIRST) == KEEP_FIRST,
        fails_on_refused=_choice(options, "fail.on.refused", "false", "true") == "true",
        refused_wait_ms=numbers["refused.wait.ms"],
        checkpoint=options.get(_CHECKPOINT, ""),
        immunity_ms=numbers["check.immunity.ms"],
        age_ms_max=numbers["batch.age.max.ms"],
        send_timeout_ms=numbers["send.timeout.ms"],
        commit_timeout_ms=numbers["commit.timeout.ms"],
        messages_max=numbers["transaction.messages.max"],
        kafka=kafka,
    )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for name in sorted(options.keys() - set(OPTIONS) - _SPARKS):
        if name.startswith("kafka."):
            continue
        near = get_close_matches(name, OPTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: kafka.*, {', '.join(OPTIONS)}"
        raise SinkOptionError(f'format("{FORMAT}") has no option {name}; {hint}')


def _required(options: Mapping[str, str], name: str, meaning: str) -> str:
    value = options.get(name, "")
    if not value:
        raise SinkOptionError(f'format("{FORMAT}") needs the option {name}: {meaning}')
    return value


def _name(options: Mapping[str, str], name: str) -> str:
    value = _required(
        options,
        name,
        "a name of the query that stays the same over restarts and that no other query has",
    )
    if not _NAME.fullmatch(value) or holds_internal_name(value):
        raise _wrong(name, value, "at most 150 letters, digits, '.', '_' and '-', no RMQ_SYS_")
    return value


def _number(options: Mapping[str, str], name: str) -> int:
    least, greatest, default = _NUMBERS[name]
    text = options.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= greatest:
        raise _wrong(name, text, f"a whole number from {least} to {greatest}")
    return int(text)


def _choice(options: Mapping[str, str], name: str, *allowed: str) -> str:
    """Return one of the words that are allowed, in any case; the first of them is the default."""
    given = options.get(name) or allowed[0]
    if given.lower() not in allowed:
        raise _wrong(name, given, " or ".join(allowed))
    return given.lower()


def _batch_number(options: Mapping[str, str], name: str, which: str) -> int | None:
    text = options.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > BATCH_ID_MAX:
        raise _wrong(name, text, f"a whole number, {which}")
    return int(text)


def _wrong(name: str, value: str, allowed: str) -> SinkOptionError:
    return SinkOptionError(f"option {name} is {value!r}; allowed: {allowed}")
