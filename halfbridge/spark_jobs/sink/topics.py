"""Looks up and checks the sink's topics, and asks where partitions end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.ends import Ends
from halfbridge.kafka.ports import NewTopic
from halfbridge.kafka.topics import Topics
from halfbridge.serde.topic_shapes import (
    CHECK_PARTITIONS,
    MESSAGE_BYTES_MAX,
    check_topic_settings,
    manifest_topic_settings,
)
from halfbridge.serde.topics import MANIFEST_PARTITIONS
from halfbridge.spark_jobs.sink.clients import new_admin
from halfbridge.spark_jobs.sink.errors import SinkSetupError, failing_as

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.kafka.ports import Ports
    from halfbridge.spark_jobs.sink.options import SinkOptions

# Longest wait for one answer of a broker. A TLS handshake and a login take a few seconds.
KAFKA_TIMEOUT_S = 20.0
MS_PER_S = 1_000
NO_ANSWER = "no broker answers"
# Settings by which a manifest topic keeps all manifests, with append times of brokers.
_GUARANTEED = ("cleanup.policy", "retention.ms", "retention.bytes", "message.timestamp.type")


def new_topics(options: SinkOptions, ports: Ports) -> Topics:
    """Return the installation's Topics, with a client of their own."""
    return Topics(
        new_admin(options, ports),
        ports,
        options.names,
        remedy=_remedy(options),
        timeout_s=KAFKA_TIMEOUT_S,
    )


def ensure_topics(options: SinkOptions, ports: Ports) -> None:
    """Check half, op and manifest topic; create manifest and check topic if they are missing.

    Raises:
        SinkSetupError: a topic has the wrong shape, or is missing and cannot be created; the text
            names the command.
    """
    names, topics = options.names, new_topics(options, ports)
    with failing_as(SinkSetupError, NO_ANSWER):
        shape = topics.half_shape()
        manifests = manifest_topic_settings(replicas=shape.replicas)
        checks = check_topic_settings(shape)
        topics.make_missing(
            [
                NewTopic(names.manifest, MANIFEST_PARTITIONS, shape.replicas, manifests),
                NewTopic(
                    names.check(options.producer_group), CHECK_PARTITIONS, shape.replicas, checks
                ),
            ]
        )
    manifest_bytes_max(topics, options)


def manifest_bytes_max(topics: Topics, options: SinkOptions) -> int:
    """Check the manifest topic, and return its max.message.bytes.

    Raises:
        SinkSetupError: the topic is missing or has too few partitions, a setting lets it forget
            records, or brokers do not answer; the text names the command.
    """
    topic = options.names.manifest
    with failing_as(SinkSetupError, NO_ANSWER):
        seen = topics.seen().get(topic)
        settings = topics.settings(topic) if seen else {}
    if seen is None or seen.partitions < MANIFEST_PARTITIONS:
        raise SinkSetupError(
            f"{topic} must have at least {MANIFEST_PARTITIONS} partitions, it has"
            f" {seen.partitions if seen else 0}; {_remedy(options)}",
            topics=(topic,),
        )
    wanted = manifest_topic_settings(replicas=seen.replicas)
    for name in _GUARANTEED:
        if settings.get(name, wanted[name]) != wanted[name]:
            raise SinkSetupError(
                f"{name} of {topic} is {settings[name]}, it must be {wanted[name]}: what the topic"
                f" forgets would be published twice. Run: {altered(options, name, wanted[name])}",
                topics=(topic,),
            )
    return int(settings.get("max.message.bytes", MESSAGE_BYTES_MAX))


def altered(options: SinkOptions, name: str, value: object) -> str:
    """Return the command that sets a setting of the manifest topic."""
    return (
        f"kafka-configs.sh --bootstrap-server {options.bootstrap_servers} --alter --entity-type"
        f" topics --entity-name {options.names.manifest} --add-config {name}={value}"
    )


def partition_ends(
    options: SinkOptions, ports: Ports, topic: str, partitions: Iterable[int], *, timeout_s: float
) -> dict[int, int]:
    """Ask for the high watermarks of partitions, all at once; return those that were answered."""
    places = [(topic, each) for each in partitions]
    if not places:
        return {}
    admin = new_admin(options, ports)  # a name keeps the client alive until it has answered
    answers = Ends(admin, places, timeout_s).answers()
    return {partition: end for (_, partition), end in answers.items()}


def _remedy(options: SinkOptions) -> str:
    prefix = f" --topic-prefix {options.prefix}" if options.prefix else ""
    return (
        f"run: halfbridge topics create --bootstrap-servers {options.bootstrap_servers}{prefix}"
        f" --producer-group {options.producer_group} --spark-sink"
    )
