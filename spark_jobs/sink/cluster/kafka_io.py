"""What the sink asks of the cluster: topics as they are and must be, ends of partitions."""

from __future__ import annotations

from concurrent.futures import TimeoutError  # noqa: A004  # its own on 3.10
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType

from halfbridge.serde.topic_shapes import (
    CHECK_PARTITIONS,
    MESSAGE_BYTES_MAX,
    HalfShape,
    check_topic_settings,
    manifest_topic_settings,
)
from halfbridge.serde.topics import MANIFEST_PARTITIONS
from halfbridge.spark_jobs.sink.clients.kafka_io import LOG, admin_for, text_of
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError, SinkSetupError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.spark_jobs.sink.options import SinkOptions

KAFKA_TIMEOUT_S = 20.0
LOOK_AGAIN_S = 0.1
MS_PER_S = 1_000
_NO_RIGHT = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_APPEARS_S = 20.0
# How much longer than it was told to the client may take to say that nobody answered.
_CLIENT_GRACE_S = 1.0


def half_shape(admin: Any, options: SinkOptions) -> HalfShape:
    """Return what the half topic is like.

    Raises:
        SinkSetupError: half or op topic is missing or they differ; the text names the command.
    """
    names = options.names
    topics = topics_of(admin)
    missing = [name for name in (names.half, names.op) if name not in topics]
    if missing:
        raise SinkSetupError(f"no topic {' and no topic '.join(missing)}; {remedy(options)}")
    if topics[names.half][0] != topics[names.op][0]:
        raise SinkSetupError(
            f"{names.half} has {topics[names.half][0]} partitions and {names.op} has"
            f" {topics[names.op][0]}; they must have the same number; {remedy(options)}"
        )
    return HalfShape(
        topics[names.half][0], record_bytes_max(admin, names.half), topics[names.half][1]
    )


def record_bytes_max(admin: Any, topic: str) -> int:
    """Return a topic's max.message.bytes; Kafka's default where it may not be read."""
    return int(settings_of(admin, topic).get("max.message.bytes", MESSAGE_BYTES_MAX))


def settings_of(admin: Any, topic: str) -> dict[str, str]:
    """Return a topic's settings; none where they may not be read.

    Raises:
        SinkSetupError: no broker answers.
    """
    resource = ConfigResource(ResourceType.TOPIC, topic)
    future = admin.describe_configs([resource], request_timeout=KAFKA_TIMEOUT_S)[resource]
    try:
        settings = future.result(KAFKA_TIMEOUT_S + _CLIENT_GRACE_S)  # the client says why
    except (KafkaException, TimeoutError) as error:
        if _code(error) not in _NO_RIGHT:
            raise SinkSetupError(
                f"the settings of {topic} were not told: {text_of(error)}"
            ) from error
        LOG.info("no right to read the settings of %s, defaults taken", topic)
        return {}
    return {name: entry.value for name, entry in settings.items()}


def check_manifest_topic(admin: Any, options: SinkOptions) -> int:
    """Check what the manifest topic must be, and return its max.message.bytes.

    Raises:
        SinkSetupError: it is missing, or forgets what it must not; the text names the command.
    """
    topic = options.names.manifest
    partitions, replicas = topics_of(admin).get(topic, (0, 0))
    if partitions < MANIFEST_PARTITIONS:
        raise SinkSetupError(
            f"{topic} must have at least {MANIFEST_PARTITIONS} partitions, it has {partitions};"
            f" {remedy(options)}"
        )
    settings = settings_of(admin, topic)
    wanted = manifest_topic_settings(replicas=replicas)
    for name in ("cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type"):
        if settings.get(name, wanted[name]) != wanted[name]:
            raise SinkSetupError(
                f"{name} of {topic} is {settings[name]}, it must be {wanted[name]}: what the topic"
                f" forgets would be published twice. Run: {altered(options, name, wanted[name])}"
            )
    return int(settings.get("max.message.bytes", MESSAGE_BYTES_MAX))


def altered(options: SinkOptions, name: str, value: object) -> str:
    """Return the command that gives a setting of the manifest topic this value."""
    return (
        f"kafka-configs.sh --bootstrap-server {options.bootstrap_servers} --alter --entity-type"
        f" topics --entity-name {options.names.manifest} --add-config {name}={value}"
    )


def topics_of(client: Any) -> dict[str, tuple[int, int]]:
    """Return every topic this client may see: name to (partitions, replication factor).

    Raises:
        SinkSetupError: no broker answers.
    """
    try:
        topics = client.list_topics(timeout=KAFKA_TIMEOUT_S).topics
    except KafkaException as error:
        raise SinkSetupError(f"no broker answers: {text_of(error)}") from error
    return {
        name: (len(topic.partitions), len(topic.partitions[0].replicas))
        for name, topic in topics.items()
        if topic.error is None and 0 in topic.partitions
    }


def remedy(options: SinkOptions) -> str:
    """Return the command that makes what is missing."""
    prefix = f" --topic-prefix {options.prefix}" if options.prefix else ""
    return (
        f"run: halfbridge topics create --bootstrap-servers {options.bootstrap_servers}{prefix}"
        f" --producer-group {options.producer_group} --spark-sink"
    )


def partition_ends(
    options: SinkOptions, topic: str, partitions: Iterable[int], *, timeout_s: float
) -> dict[int, int]:
    """Return the high watermark of each partition whose broker tells it; all are asked at once."""
    wanted = {TopicPartition(topic, each): OffsetSpec.latest() for each in partitions}
    if not wanted:
        return {}
    admin = admin_for(options)  # kept: a client that is gone answers nothing
    deadline = monotonic() + timeout_s + _CLIENT_GRACE_S
    futures = admin.list_offsets(
        wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=timeout_s
    )
    ends: dict[int, int] = {}
    for place, future in futures.items():
        with suppress(KafkaException, TimeoutError):
            # Negative: time was up, of which the client (2.16) says nothing else.
            if (end := future.result(max(0.0, deadline - monotonic())).offset) >= 0:
                ends[place.partition] = end
    return ends


def ensure_topics(options: SinkOptions) -> None:
    """Check half, op and manifest topic; make the latter and the group's check topic if missing.

    Raises:
        SinkSetupError: a topic is not what it must be, or is missing and may not be made; the text
            names the command.
    """
    admin = admin_for(options)
    shape = half_shape(admin, options)
    names = options.names
    there = topics_of(admin)
    wanted = {
        names.manifest: (MANIFEST_PARTITIONS, manifest_topic_settings(replicas=shape.replicas)),
        names.check(options.producer_group): (CHECK_PARTITIONS, check_topic_settings(shape)),
    }
    missing = [
        NewTopic(name, partitions, shape.replicas, config=settings)
        for name, (partitions, settings) in wanted.items()
        if name not in there
    ]
    if missing:
        _create(admin, missing, options)
    check_manifest_topic(admin, options)


def _create(admin: Any, missing: list[Any], options: SinkOptions) -> None:
    for name, future in admin.create_topics(missing, request_timeout=KAFKA_TIMEOUT_S).items():
        try:
            future.result(KAFKA_TIMEOUT_S + _CLIENT_GRACE_S)
        except (KafkaException, TimeoutError) as error:  # noqa: PERF203 (two topics)
            if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise SinkSetupError(
                    f"no topic {name}, and it could not be created ({text_of(error)});"
                    f" {remedy(options)}"
                ) from error
    wanted = {each.topic for each in missing}
    deadline = monotonic() + _APPEARS_S
    while not wanted <= topics_of(admin).keys():
        if monotonic() > deadline:
            raise SinkSetupError(f"{', '.join(sorted(wanted))}: created, and does not appear")
        admin.poll(LOOK_AGAIN_S)


def ends_of(consumer: Any, place: TopicPartition, deadline: float) -> tuple[int, int]:
    """Return where a partition begins and ends (its high watermark), as the brokers say now.

    Raises:
        CommitInDoubtError: they did not say before `deadline`, by the monotonic clock.
    """
    while True:
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise CommitInDoubtError(f"the end of {place.topic} was not told in time")
        try:
            start, end = consumer.get_watermark_offsets(place, timeout=min(left_s, KAFKA_TIMEOUT_S))
        except KafkaException as error:
            LOG.info("asking for the end of %s: %s", place.topic, text_of(error))
            consumer.poll(LOOK_AGAIN_S)
            continue
        return int(start), int(end)


def _code(error: KafkaException | TimeoutError) -> int | None:
    """Return what a broker said; None where none did."""
    return error.args[0].code() if isinstance(error, KafkaException) else None
