"""The sink holds its age limit against the daemon's, where the installation's record says it."""

from dataclasses import replace

import pytest
from confluent_kafka import Producer

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import TopicShape, Wanted
from halfbridge.kafka import settings_topic
from halfbridge.serde.records import DaemonSettings
from halfbridge.serde.settings_topic import DAEMON_KEY, encode_daemon_settings
from halfbridge.spark_jobs.sink.clients import check_age
from halfbridge.spark_jobs.sink.errors import SinkOptionError
from tests.spark.sink_parts import Sink

pytestmark = [pytest.mark.spark, pytest.mark.broker]

HOUR_MS = 3_600_000


def say(sink: Sink, *records: tuple[bytes, bytes | None]) -> None:
    """Append records to the settings topic."""
    topic = sink.scene.names.settings
    if topic not in sink.scene.topics():
        wanted = (Wanted("cleanup.policy", "compact"),)
        Cluster(sink.scene.servers).create(TopicShape(topic, 1, wanted), replication_factor=1)
    producer = Producer({"bootstrap.servers": sink.scene.servers})
    told: list[object] = []
    for key, value in records:
        producer.produce(topic, value, key, on_delivery=lambda error, _: told.append(error))
        producer.flush(60)  # one a batch, which the topic's limit is on
    assert told == [None] * len(records)


def limit(hours: int) -> tuple[bytes, bytes]:
    """Return the record of a daemon that gives half messages up after some hours."""
    settings = DaemonSettings(transaction_age_ms_max=hours * HOUR_MS)
    return DAEMON_KEY, encode_daemon_settings(settings)


def test_an_age_beyond_the_daemons_is_refused(sink: Sink) -> None:
    """Part of a batch would be published, and part given up: the newest record says so."""
    sink.options = replace(sink.options, age_ms_max=24 * HOUR_MS)
    check_age(sink.options, sink.process.ports)  # no record, the defaults
    say(sink, limit(12), limit(72), limit(24))
    wanted = rf"batch\.age\.max\.ms is 86400000, .* Set the option to {8 * HOUR_MS} or less"
    with pytest.raises(SinkOptionError, match=wanted):
        check_age(sink.options, sink.process.ports)
    check_age(replace(sink.options, age_ms_max=8 * HOUR_MS), sink.process.ports)
    say(sink, limit(72))
    check_age(sink.options, sink.process.ports)


def test_a_record_that_cannot_be_read_refuses_nothing(
    sink: Sink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a hint: without it the daemon's defaults are assumed, and the log says so."""
    caplog.set_level("INFO", "halfbridge.spark")
    say(sink, limit(1), (b"another key", b"?"), (DAEMON_KEY, b"damaged"))
    check_age(sink.options, sink.process.ports)
    assert "the daemon's defaults are assumed" in caplog.text
    say(sink, limit(1), (DAEMON_KEY, None))
    check_age(sink.options, sink.process.ports)
    say(sink, limit(1), *[(b"more", bytes(1_000))] * 20)
    with pytest.raises(SinkOptionError):
        check_age(sink.options, sink.process.ports)
    monkeypatch.setattr(settings_topic, "READ_BYTES_MAX", 10_000)
    check_age(sink.options, sink.process.ports)
