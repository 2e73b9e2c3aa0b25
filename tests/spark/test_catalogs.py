"""Ingesting into tables of a catalog: each record once, as pyiceberg and delta-rs read them."""

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from halfbridge.serde.avro import MARKER, schema_fingerprint
from tests.kit.waiting import until
from tests.spark.ingest_driver import GO
from tests.spark.lake import START_S_MAX, Lake
from tests.spark.lake_driver import COMMITTED, HELD, NEVER, STAGED, UNMARKED
from tests.spark.real_topic import DAY_1_MS, DAY_2_MS, Real, RealTopic, make_topic
from tests.spark.test_ingest_kills import (
    KILL_AFTER_S_MAX,
    RACED,
    SEED,
    await_batch,
    end,
    writing,
)

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(900)]

RECORDS = 12
SMALL_BATCHES = ("--max-offsets", "10")
KILLS = int(os.environ.get("HALFBRIDGE_SPARK_KILLS", "20"))
STARTS_MAX = 3 * KILLS
NUMBER_MAX = 3  # of the batch at which a driver dies: later ones take longer and are like these


@pytest.fixture
def topic(kafka_bootstrap_servers: str, topic_prefix: str) -> RealTopic:
    return make_topic(kafka_bootstrap_servers, f"{topic_prefix}orders")


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    lake = Lake(tmp_path, request.param)
    lake.check_jars()
    return lake


def deliver(topic: RealTopic, first: int) -> list[tuple[str, bytes]]:
    """Deliver a transaction for each record, on two days; return what must arrive."""
    numbers = range(first, first + RECORDS)
    for number in numbers:
        day_ms = (DAY_1_MS, DAY_2_MS)[number % 2]
        value = f"{number}".encode()
        topic.commit(Real(transaction_id=f"t{number:03}", value=value, timestamp_ms=day_ms))
    return [(f"t{number:03}", f"{number}".encode()) for number in numbers]


def killed(lake: Lake, topic: RealTopic, moment: str, *more: str) -> None:
    """Run a driver that dies at its first batch."""
    driver = lake.start(topic, moment, 1, *more)
    try:
        _, words = driver.communicate(timeout=START_S_MAX)
    finally:
        end(driver)
    assert driver.returncode == -signal.SIGKILL, words


def ingested(lake: Lake, topic: RealTopic, *more: str, moment: str = NEVER) -> dict[str, Any]:
    """Run a driver to its end, and return its report."""
    driver = lake.start(topic, moment, 0, *more)
    try:
        output, words = driver.communicate(timeout=START_S_MAX)
    finally:
        end(driver)
    assert driver.returncode == 0, words
    report: dict[str, Any] = json.loads(output)
    return report


@pytest.mark.parametrize(
    "lake", ["iceberg", pytest.param("delta", marks=pytest.mark.spark_long)], indirect=True
)
def test_a_batch_is_added_once_though_the_driver_died(lake: Lake, topic: RealTopic) -> None:
    """It dies after the commit of a batch, and before that of the next; a third run continues."""
    expected = deliver(topic, 0)
    killed(lake, topic, COMMITTED, *SMALL_BATCHES)
    added = len(lake.rows())
    assert 0 < added < RECORDS
    killed(lake, topic, STAGED if lake.kind == "iceberg" else COMMITTED, *SMALL_BATCHES)
    report = ingested(lake, topic)
    assert lake.rows() == expected
    assert (report["table"], report["format"]) == (lake.table, lake.kind)


@pytest.mark.spark_long
@pytest.mark.parametrize("lake", ["iceberg", "delta"], indirect=True)
def test_a_payload_gets_the_fields_of_a_newer_schema(
    lake: Lake, topic: RealTopic, tmp_path: Path
) -> None:
    """A table by day of the transaction's begin: older rows have null in the new field."""
    fields = [{"name": "n", "type": "long"}, {"name": "m", "type": "long", "default": 0}]
    files = [tmp_path / f"{number}.avsc" for number in (1, 2)]
    for number, file in enumerate(files, 1):
        schema = {"type": "record", "name": "Order", "fields": fields[:number]}
        file.write_text(json.dumps(schema))
        value = MARKER + schema_fingerprint(schema) + b"\x02" * number
        topic.commit(Real(transaction_id=f"t{number}", value=value, timestamp_ms=DAY_2_MS))
        given = [word for each in files[:number] for word in ("--schema", str(each))]
        report = ingested(lake, topic, "--partition-by", "born_timestamp", *given)
        assert (report["rows"], report["quarantined"]) == (1, 0)
    read = lake.read()
    rows = dict(zip(read["transaction_id"].to_pylist(), read["payload"].to_pylist(), strict=True))
    assert rows == {"t1": {"n": 1, "m": None}, "t2": {"n": 1, "m": 1}}
    if lake.kind == "iceberg":
        names = [field.name for field in lake.iceberg().spec().fields]
        assert names == ["born_timestamp_day", "quarantined"]


@pytest.mark.spark_long
@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)
def test_without_the_property_a_batch_is_doubled(lake: Lake, topic: RealTopic) -> None:
    """The control: an append that does not say which batch it is."""
    expected = deliver(topic, 0)
    killed(lake, topic, UNMARKED)
    ingested(lake, topic, moment=UNMARKED)
    assert lake.rows() == sorted(expected * 2)


@pytest.mark.spark_long
@pytest.mark.parametrize("by", ["rest", "hadoop"])
def test_the_second_of_two_drivers_adds_nothing(topic: RealTopic, tmp_path: Path, by: str) -> None:
    """One is held between staging and publishing, and overtaken: each record is there once.

    It says that it added nothing, and Spark ends it.
    """
    Lake(tmp_path, "iceberg").check_jars()
    from tests.kit.iceberg_rest import rest_catalog  # noqa: PLC0415  # where pyiceberg is

    with rest_catalog(tmp_path) as (uri, catalog):
        catalog.create_namespace("sales")
        lake = Lake(tmp_path, "iceberg", uri if by == "rest" else "")
        expected = deliver(topic, 0)
        first = lake.start(topic, HELD, tmp_path)
        try:
            until(
                "the first is held",
                lambda: (tmp_path / HELD).exists() or first.poll() is not None,
                within_s=START_S_MAX,
            )
            ingested(lake, topic)
            (tmp_path / GO).touch()
            _, words = first.communicate(timeout=START_S_MAX)
        finally:
            end(first)
        assert "batch 0: the table has it already" in words
        assert RACED.search(words), words
        assert first.returncode == 1
        assert lake.rows() == expected


@pytest.mark.spark_long
def test_a_batch_whose_snapshot_was_expired_is_refused(topic: RealTopic, tmp_path: Path) -> None:
    """Spark would run it again, and nothing says that the table has it: the user must look."""
    Lake(tmp_path, "iceberg").check_jars()
    from tests.kit.iceberg_rest import rest_catalog  # noqa: PLC0415  # where pyiceberg is

    with rest_catalog(tmp_path) as (uri, catalog):
        catalog.create_namespace("sales")
        lake = Lake(tmp_path, "iceberg", uri)
        expected = deliver(topic, 0)
        killed(lake, topic, COMMITTED)
        table = lake.iceberg()
        ours = table.current_snapshot().snapshot_id
        table.append(table.scan().to_arrow().slice(0, 0))
        table.maintenance.expire_snapshots().by_id(ours).commit()
        driver = lake.start(topic, NEVER, 0)
        try:
            _, words = driver.communicate(timeout=START_S_MAX)
        finally:
            end(driver)
        assert driver.returncode == 1
        assert "is not known" in words
        assert lake.rows() == expected


@pytest.mark.spark_long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("lake", ["iceberg", "delta"], indirect=True)
def test_every_record_once_whenever_the_driver_is_killed(
    lake: Lake, kafka_bootstrap_servers: str, topic_prefix: str
) -> None:
    """Two of three drivers die between the steps of a commit, the others when the seed says.

    Three in ten of the latter are killed alone: their JVM ends a moment later, beside a successor.
    """
    draw = random.Random(SEED)
    moments = [STAGED, COMMITTED, NEVER] if lake.kind == "iceberg" else [COMMITTED, NEVER]
    starts = kills = 0
    with writing(kafka_bootstrap_servers, topic_prefix) as (topic, writer, drivers):
        while kills < KILLS:
            assert (starts := starts + 1) <= STARTS_MAX, "too many starts met their predecessor"
            moment = draw.choice(moments)
            bounds = ("--max-offsets", "200", "--trigger", "200ms")
            driver = lake.start(topic, moment, draw.randint(1, NUMBER_MAX), *bounds)
            drivers.append(driver)
            if moment != NEVER:
                _, words = driver.communicate(timeout=START_S_MAX)
                assert driver.returncode == -signal.SIGKILL or RACED.search(words), words
                kills += driver.returncode == -signal.SIGKILL
            elif await_batch(driver):
                threading.Event().wait(draw.uniform(0, KILL_AFTER_S_MAX))
                driver.kill()
                if draw.random() < 0.7:
                    end(driver)
                kills += 1
    ingested(lake, topic)
    found = lake.rows()
    assert found == sorted(writer.delivered), f"seed {SEED}"
    sys.stderr.write(f"{lake.kind}: {kills} kills, {len(found)} records\n")
