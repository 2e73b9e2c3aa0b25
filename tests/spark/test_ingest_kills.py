"""Ingesting while the driver is killed, again and again, at moments that a seed draws."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from halfbridge.spark_jobs.tables.delta import read_table
from tests.spark.real_topic import DAY_1_MS, DAY_2_MS, Real, RealTopic, make_topic

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.spark_long]

KILLS = int(os.environ.get("HALFBRIDGE_SPARK_KILLS", "8"))
SEED = int(os.environ.get("HALFBRIDGE_SPARK_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
# From the first batch's line on; a batch takes half a second on a quiet machine.
KILL_AFTER_S_MAX = 4.0
START_S_MAX = 600.0
STARTS_MAX = 3 * KILLS
# What a driver says whose predecessor's JVM wrote at the same moment.
RACED = re.compile(r"CONCURRENT_STREAM_LOG_UPDATE|Race while writing|[Cc]oncurrent")
PARTITIONS = 4
WRITE_EVERY_S = 0.2
POLL_S = 0.2


class Writer(threading.Thread):
    """Delivers transactions until it is stopped, some of them aborted; keeps what must arrive."""

    def __init__(self, topic: RealTopic, draw: random.Random) -> None:
        super().__init__(name="writer")
        self.delivered: list[tuple[str, bytes]] = []
        self.error: BaseException | None = None
        self._topic = topic
        self._draw = draw
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Write until asked to stop."""
        try:
            number = 0
            while not self._stop_asked.wait(WRITE_EVERY_S):
                records = [
                    Real(
                        transaction_id=f"t{number}",
                        partition=self._draw.randrange(PARTITIONS),
                        value=f"{number}/{index}".encode(),
                        timestamp_ms=self._draw.choice([DAY_1_MS, DAY_2_MS]),
                    )
                    for index in range(self._draw.randint(1, 20))
                ]
                if self._draw.random() < 0.1:
                    self._topic.abort(*records)
                else:
                    self._topic.commit(*records)
                    self.delivered += [(each.transaction_id, each.value or b"") for each in records]
                number += 1
        except BaseException as error:  # noqa: BLE001 (the test raises it)
            self.error = error

    def stop(self) -> None:
        """Stop; raise what went wrong."""
        self._stop_asked.set()
        self.join()
        if self.error is not None:
            raise self.error


def start(topic: RealTopic, directory: Path, kind: str, *more: str) -> subprocess.Popen[str]:
    """Start the job as a driver of its own, in a process group of its own."""
    command = [
        *(
            sys.executable,
            "-m",
            "halfbridge.spark_jobs.ingest",
            "--bootstrap-servers",
            topic.servers,
        ),
        *("--topic", topic.name, "--format", kind, "--output", str(directory / "table")),
        *("--checkpoint", str(directory / "checkpoint"), "--max-offsets", "200", "--json"),
        *("--spark-opt", "spark.master=local[2]", "--spark-opt", "spark.driver.memory=1g"),
    ]
    return subprocess.Popen(
        [*command, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def await_batch(driver: subprocess.Popen[str]) -> bool:
    """Return once the driver has reported a batch, or has ended because of its predecessor.

    A JVM that outlives its driver for a moment may be the first to write a batch, or Spark's note
    of it; then the successor must stop, and a third one continues.
    """
    assert driver.stderr is not None
    words = []
    for line in driver.stderr:
        words.append(line)
        if line.startswith(("batch ", "an unfinished batch")):
            return True
    text = "".join(words)
    assert RACED.search(text), text
    return False


def end(driver: subprocess.Popen[str]) -> None:
    """SIGKILL all that is left of a driver, its JVM included."""
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    for pipe in (driver.stdout, driver.stderr):
        if pipe is not None:
            pipe.close()


@contextmanager
def writing(
    servers: str, prefix: str
) -> Iterator[tuple[RealTopic, Writer, list[subprocess.Popen[str]]]]:
    """Yield a topic, its writer, and a list of drivers; writer and drivers end with the block."""
    sys.stderr.write(f"seed {SEED}\n")
    topic = make_topic(servers, f"{prefix}orders", partitions=PARTITIONS)
    writer = Writer(topic, random.Random(SEED))
    drivers: list[subprocess.Popen[str]] = []
    writer.start()
    try:
        yield topic, writer, drivers
    finally:
        for driver in drivers:
            end(driver)
        writer.stop()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_every_record_once_whenever_the_driver_is_killed(
    spark: SparkSession, kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path, kind: str
) -> None:
    """The table holds what consumers see, each record once, byte-equal, after all the kills.

    Half of the kills take the Python driver alone; its JVM ends by itself a moment later, when its
    successor may be running already.
    """
    if kind == "delta":
        pytest.importorskip("deltalake")
    draw = random.Random(SEED)
    pause = threading.Event()
    kills = 0
    with writing(kafka_bootstrap_servers, topic_prefix) as (topic, writer, drivers):
        while kills < KILLS:
            assert len(drivers) < STARTS_MAX, "too many starts met their predecessor"
            drivers.append(driver := start(topic, tmp_path, kind, "--trigger", "200ms"))
            if not await_batch(driver):
                continue
            pause.wait(draw.uniform(0, KILL_AFTER_S_MAX))
            driver.kill()
            driver.wait()
            if draw.random() < 0.5:
                end(driver)
            kills += 1
    last = start(topic, tmp_path, kind, "--max-offsets", "1000000")
    try:
        output, words = last.communicate(timeout=START_S_MAX)
    finally:
        end(last)
    assert last.returncode == 0, words
    assert json.loads(output)["hidden"] == []
    table = read_table(spark, str(tmp_path / "table"))
    assert table is not None
    rows = table.select("transaction_id", "value").collect()
    found = sorted((row["transaction_id"], bytes(row["value"])) for row in rows)
    assert found == sorted(writer.delivered), f"seed {SEED}"
    sys.stderr.write(f"{kind}: {KILLS} kills, {len(found)} records\n")


@pytest.mark.timeout(1800)
def test_asked_to_end_it_ends_well(
    kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    """SIGTERM is how a job at an interval is stopped: status 0, and its numbers are printed."""
    topic = make_topic(kafka_bootstrap_servers, f"{topic_prefix}orders")
    topic.commit(Real(transaction_id="a1"))
    driver = start(topic, tmp_path, "parquet", "--trigger", "200ms")
    try:
        assert await_batch(driver)
        driver.terminate()
        output, words = driver.communicate(timeout=START_S_MAX)
    finally:
        end(driver)
    assert driver.returncode == 0, words
    report = json.loads(output)
    assert (report["rows"], report["interrupted"]) == (1, True)
