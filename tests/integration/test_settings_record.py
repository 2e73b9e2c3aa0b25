"""The record of the daemon's limits on a real broker: hints that reach whom they concern."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from typing import Any

import fastavro
import pytest

from halfbridge.bridge import Message, Resolution
from halfbridge.checker.process import settings_topic as settings_record
from halfbridge.serde.avro import MARKER, schema_fingerprint
from halfbridge.serde.errors import SerdeError
from halfbridge.serde.records import DaemonSettings
from halfbridge.serde.settings_topic import (
    DAEMON_KEY,
    decode_daemon_settings,
    encode_daemon_settings,
)
from tests.integration.daemon import Daemon
from tests.integration.installation import Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

HOUR_MS = 3_600_000
READ = "the daemon's limits are"  # how the client's one line begins


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, "halfbridge"):
        yield


def _lines(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    said = [f"{each.levelname} {each.getMessage()}" for each in list(caplog.records)]
    return [line for line in said if all(word in line for word in words)]


def _records(installation: Installation) -> list[DaemonSettings]:
    """Return what the topic's records say; those that cannot be read are left out."""
    found = []
    for record in installation.tail(installation.names.settings).to_end():
        with suppress(SerdeError):
            found.append(decode_daemon_settings(record.value or b""))
    return found


def _published(installation: Installation, worker: str) -> DaemonSettings:
    """Return the last record, once `worker` wrote it."""

    def last() -> DaemonSettings | None:
        records = _records(installation)
        return records[-1] if records and records[-1].worker == worker else None

    found: DaemonSettings = until(f"{worker} has written its limits", last)
    return found


def _deliver(installation: Installation, topic: str, **given: Any) -> None:
    """Send one transaction by the client, and see it come out."""
    with installation.producer(lambda _: Resolution.UNKNOWN, topics=[topic], **given) as producer:
        transaction = producer.begin()
        transaction.send(Message(topic=topic, value=b"value"))
        transaction.commit()
        installation.tail(topic).until(1)


@pytest.mark.feature
def test_the_daemon_publishes_its_limits(installation: Installation) -> None:
    """Once: a worker that starts with the same settings adds nothing."""
    installation.make()
    daemon = installation.start(transaction_age_ms_max=2 * HOUR_MS, check_count_max=7)
    record = _published(installation, "w-0")
    assert (record.transaction_age_ms_max, record.check_count_max) == (2 * HOUR_MS, 7)
    assert record.transaction_timeout_ms == daemon.config.transaction_timeout_ms
    daemon.stop()
    installation.start(transaction_age_ms_max=2 * HOUR_MS, check_count_max=7).stop()
    installation.start(check_count_max=8)
    _published(installation, "w-0")
    until("the new limits stand", lambda: _records(installation)[-1].check_count_max == 8)
    assert [each.check_count_max for each in _records(installation)] == [7, 8]


@pytest.mark.feature
def test_a_client_warns_of_what_differs(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each difference, and once for a message whose immunity the daemon's age cuts."""
    installation.make()
    topic = installation.topic("orders")
    installation.start(transaction_timeout_ms=60_000, transaction_age_ms_max=2 * HOUR_MS)
    _published(installation, "w-0")
    with installation.producer(lambda _: Resolution.UNKNOWN, topics=[topic]) as producer:
        until("the client has read it", lambda: _lines(caplog, "in this client and"))
        for _ in range(2):
            transaction = producer.begin()
            transaction.send(Message(topic=topic, value=b"value", immunity_ms=HOUR_MS + 1))
            transaction.commit()
    assert (
        len(_lines(caplog, "WARNING transaction_timeout_ms is 6000 in this client and 60000")) == 1
    )
    assert len(_lines(caplog, "WARNING transaction_age_ms_max is 259200000 in this client")) == 1
    assert len(_lines(caplog, "in this client and")) == 2
    assert len(_lines(caplog, "WARNING a message asks for an immunity of 3600001 ms")) == 1


def test_a_client_with_the_daemons_settings_is_silent(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """Also with immunities that are just short enough."""
    installation.make()
    topic = installation.topic("orders")
    same = {"transaction_timeout_ms": 60_000, "transaction_age_ms_max": 2 * HOUR_MS}
    installation.start(**same)
    _published(installation, "w-0")
    with installation.producer(lambda _: Resolution.UNKNOWN, topics=[topic], **same) as producer:
        until("the client has read it", lambda: _lines(caplog, READ, "DaemonSettings("))
        transaction = producer.begin()
        transaction.send(Message(topic=topic, value=b"value", immunity_ms=HOUR_MS))
        transaction.commit()
    assert _lines(caplog, "WARNING") == []


def test_workers_that_disagree_say_so(
    installation: Installation, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of them, by /healthz, metric and log; the one that stays is well once it is alone."""
    monkeypatch.setattr(settings_record, "POLL_S", 0.3)
    installation.make(partitions=2)
    here = installation.start(slot="w-0")
    there = installation.launch(slot="w-1", check_count_max=7)

    until("both are red", lambda: _is_red(here, "w-1") and _is_red(there, "w-0"))
    assert here.metric("halfbridge_settings_disagree") == 1
    assert _lines(caplog, "WARNING limits differ: worker 'w-1'", "check_count_max 7 (here 15)")
    assert _lines(caplog, "WARNING limits differ: worker 'w-0'", "check_count_max 15 (here 7)")

    there.stop()
    until("all is well", lambda: here.healthz()[0] == 200)
    assert here.metric("halfbridge_settings_disagree") == 0
    assert _published(installation, "w-0").check_count_max == 15


def _is_red(daemon: Daemon, other: str) -> bool:
    status, body = daemon.healthz()
    return status == 503 and f"worker '{other}' runs with other limits" in body["reason"]


def test_an_installation_without_the_topic(
    installation: Installation, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon names the command once and delivers; clients assume its defaults."""
    monkeypatch.setattr(settings_record, "POLL_S", 0.1)
    installation.make()
    installation.delete(installation.names.settings)
    topic = installation.topic("orders")
    daemon = installation.start()
    command = f"halfbridge topics create --bootstrap-servers {installation.servers}"
    until("it is logged", lambda: _lines(caplog, "WARNING settings record", command))
    _deliver(installation, topic)
    until("the client tells it", lambda: _lines(caplog, "INFO", "using defaults"))
    assert daemon.healthz()[0] == 200
    assert installation.names.settings not in installation.topics()
    assert len(_lines(caplog, "WARNING")) == 1

    for _ in range(2):  # and when it is created again under a running daemon
        installation.create(installation.names.settings, cleanup_policy="compact")
        assert _published(installation, "w-0").check_count_max == 15
        installation.reopen(installation.names.settings)
        installation.delete(installation.names.settings)


def test_a_record_of_a_newer_schema_is_harmless(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """The client says in one line that it is older; the daemon writes what it knows."""
    installation.make()
    topic = installation.topic("orders")
    installation.write(installation.names.settings, _of_a_newer_schema(), key=DAEMON_KEY)
    with installation.producer(lambda _: Resolution.UNKNOWN, topics=[topic]):
        until("the client tells it", lambda: _lines(caplog, "WARNING", "using defaults"))
    (line,) = _lines(caplog, "WARNING")
    assert "unknown schema fingerprint" in line
    assert "upgrade the client" in line

    installation.start()
    _published(installation, "w-0")
    _deliver(installation, topic)


def test_damaged_and_huge_records_are_harmless(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """As the last record of the daemon's key, under other keys, and as a tombstone."""
    installation.make()
    topic, settings = installation.topic("orders"), installation.names.settings
    installation.alter(settings, max_message_bytes="2000000")
    good = encode_daemon_settings(DaemonSettings(check_count_max=7))
    installation.write(settings, None, key=b"\xff\x00")
    installation.write(settings, bytes(1_000_000), key=b"a later key")
    for value, reported in (
        (None, "INFO the daemon has not published its limits"),
        (b"", "not in single-object encoding"),
        (good[:-1], "broken body"),
        (good + b"\x00", "bytes after"),
        (bytes(1_000_000), "1000000 bytes, more than 16384"),
    ):
        installation.write(settings, value, key=DAEMON_KEY)
        with installation.producer(lambda _: Resolution.UNKNOWN, topics=[topic]):
            until(
                "the client tells it",
                lambda reported=reported: _lines(caplog, reported, "using defaults"),
            )

    installation.start()
    _published(installation, "w-0")
    assert _lines(caplog, "WARNING the record of the daemon's limits", "is written again")
    _deliver(installation, topic)


def test_a_topic_that_somebody_filled_is_given_up(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers stop at 8 MiB; the daemon continues and logs what is wrong with the topic."""
    installation.make()
    topic, settings = installation.topic("orders"), installation.names.settings
    installation.alter(settings, max_message_bytes="2000000")
    for number in range(9):
        installation.write(settings, bytes(1_000_000), key=str(number).encode())
    daemon = installation.start()
    until("the daemon tells it", lambda: _lines(caplog, "WARNING settings record", "8388608"))
    _deliver(installation, topic)
    with installation.producer(lambda _: Resolution.UNKNOWN, topics=[topic]):  # open: it reads on
        until("the client tells it", lambda: _lines(caplog, "INFO the daemon's", "8388608"))
    assert daemon.healthz()[0] == 200


def _of_a_newer_schema() -> bytes:
    name = {"name": "motto", "type": "string", "default": ""}
    schema = fastavro.parse_schema(
        {"type": "record", "name": "DaemonSettings", "namespace": "halfbridge", "fields": [name]}
    )
    body = BytesIO()
    fastavro.schemaless_writer(body, schema, {"motto": "festina lente"})
    return MARKER + schema_fingerprint(schema) + body.getvalue()
