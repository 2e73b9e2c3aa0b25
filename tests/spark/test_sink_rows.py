"""Rows that their real topic would refuse: reported by the sink, before they are dead letters."""

from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, Producer

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import TopicShape, Wanted
from halfbridge.kafka import settings_topic
from halfbridge.serde.headers import real_headers
from halfbridge.serde.identity import TRANSACTION_IDS
from halfbridge.serde.records import DaemonSettings
from halfbridge.serde.settings_topic import DAEMON_KEY, encode_daemon_settings
from halfbridge.spark_jobs.sink.clients import check_age
from halfbridge.spark_jobs.sink.errors import RowError, SinkOptionError
from halfbridge.spark_jobs.sink.rows import delivered_bytes
from tests.spark.sink_parts import Sink
from tests.spark.sink_scene import value_of

pytestmark = [pytest.mark.spark, pytest.mark.broker]
SMALL_BYTES = 10_000


def test_a_row_that_its_topic_would_refuse(sink: Sink) -> None:
    """The attempt fails and is rolled back, rather than its transaction become a dead letter."""
    small = sink.topic("small", max_message_bytes=str(SMALL_BYTES))
    sink.write([(b"k", b"v" * 9_000)], topic=small)
    with pytest.raises(RowError, match=rf"small, whose max.message.bytes is {SMALL_BYTES}"):
        sink.write([(b"k", value_of(0)), (b"k", b"v" * 20_000)], topic=small)
    assert len(sink.scene.undecided()) == 1

    sink.alter(small, "max.message.bytes", str(3 * SMALL_BYTES))
    sink.write([(b"k", b"v" * 20_000)], topic=small)  # in the same process, as the text advised


def test_a_row_too_large_for_a_half_topic_that_then_grew(sink: Sink) -> None:
    """The limit is read again after a refusal, in the same process: Spark keeps its workers."""
    half = sink.scene.names.half
    sink.alter(half, "max.message.bytes", "200000")
    large = [(b"k", b"v"), (b"k", b"v" * 150_000)]
    with pytest.raises(RowError, match=r"larger than 134464: max\.message\.bytes of"):
        sink.write(large)

    assert sink.scene.undecided() == set()
    sink.alter(half, "max.message.bytes", "400000")
    sink.write(large)
    assert len(sink.scene.undecided()) == 1


def test_a_row_without_a_key_for_a_compacted_topic(sink: Sink) -> None:
    """No compacted topic takes one."""
    compacted = sink.topic("compacted", cleanup_policy="compact,delete")
    sink.write([(b"", value_of(0))], topic=compacted)
    with pytest.raises(RowError, match="accepts no row without a key"):
        sink.write([(None, value_of(0))], topic=compacted)


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("headers", [[], [("none", None), ("n" * 64, b"x" * 100)] * 2])
def test_the_brokers_count_as_the_sink_does(
    sink: Sink, key: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    """The largest row that it lets pass is stored, with any index; one byte more is refused."""
    topic = sink.topic("small", max_message_bytes=str(SMALL_BYTES))
    spare = SMALL_BYTES - delivered_bytes((topic, 0, key, b"v" * 9_000, headers))
    fits = b"v" * (9_000 + spare)
    assert delivered_bytes((topic, 0, key, fits, headers)) == SMALL_BYTES

    producer = Producer({"bootstrap.servers": sink.scene.servers, "linger.ms": 0})
    codes = []
    for value in (fits, fits + b"v"):
        added = real_headers(headers, TRANSACTION_IDS.next(), 1_800_000_000_000, 999)
        producer.produce(
            topic, value, key, 0, headers=added, on_delivery=lambda error, _: codes.append(error)
        )
        producer.flush(20)
    assert codes[0] is None
    assert codes[1].code() == KafkaError.MSG_SIZE_TOO_LARGE


# --- the sink holds its age limit against the daemon's, where the installation's record says it

HOUR_MS = 3_600_000


def say(sink: Sink, *records: tuple[bytes, bytes | None]) -> None:
    """Append records to the settings topic."""
    topic = sink.scene.names.settings
    if topic not in sink.scene.topics():
        wanted = (Wanted("cleanup.policy", "compact"),)
        Cluster(sink.scene.servers).create(TopicShape(topic, 1, wanted), replication_factor=1)
    producer = Producer({"bootstrap.servers": sink.scene.servers})
    outcomes: list[object] = []
    for key, value in records:
        producer.produce(topic, value, key, on_delivery=lambda error, _: outcomes.append(error))
        producer.flush(60)  # one a batch, which the topic's limit is on
    assert outcomes == [None] * len(records)


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
    """It is a hint: without it the daemon's defaults are assumed, and a line is logged."""
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
