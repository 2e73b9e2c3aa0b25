"""Prometheus metrics of streaming queries, scraped while real ones run."""

import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame, SparkSession

from halfbridge.spark_jobs.jobs.progress import metrics_served
from halfbridge.spark_jobs.reading.cluster import connect
from halfbridge.spark_jobs.reading.topics import Topics, stream_topics
from tests.kit.http import answer_of
from tests.spark.real_topic import Real, RealTopic, make_topic

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

WAIT_S_MAX = 600.0
POLL_S = 1.0  # each look asks the cluster too
Samples = dict[str, float]


def scrape(port: int | None) -> Samples:
    """Return what the port shows: name and label values, by the labels' names -> value."""
    _, text = answer_of(f"http://localhost:{port}/metrics", within_s=30)
    return {
        ",".join((sample.name.removeprefix("halfbridge_spark_"), *sample.labels.values())): value
        for family in text_string_to_metric_families(text)
        for sample, value in ((each, each.value) for each in family.samples)
    }


def scrape_until(port: int | None, name: str, value: float) -> Samples:
    """Return what the port shows once a sample has that value; Spark's reports come late."""
    shown: Samples = {}
    pause = threading.Event()
    for _ in range(round(WAIT_S_MAX / POLL_S)):
        shown = scrape(port)
        if shown.get(name) == value:
            return shown
        pause.wait(POLL_S)
    pytest.fail(f"{name} never was {value}: {shown}")


@pytest.fixture
def topic(kafka_bootstrap_servers: str, topic_prefix: str) -> RealTopic:
    return make_topic(kafka_bootstrap_servers, f"{topic_prefix}orders")


@pytest.mark.feature
@pytest.mark.broker
def test_a_running_query_is_shown(spark: SparkSession, topic: RealTopic, tmp_path: Path) -> None:
    """Rows, batches, times, what is left to read, and where an open kafka_txn hides offsets."""
    topic.commit(Real(transaction_id="a1"), Real(transaction_id="a1", partition=1))
    topics = Topics.of(topic.name)
    said: list[str] = []
    with (
        connect(spark, topic.servers, {}) as cluster,
        metrics_served(spark, 0, say=said.append, stalls=lambda: cluster.stalls(topics)) as port,
    ):
        records = stream_topics(spark, topics, bootstrap_servers=topic.servers)
        query = (
            records.writeStream.format("noop")
            .queryName("orders")
            .option("checkpointLocation", str(tmp_path))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            shown = scrape_until(port, "input_rows_total,orders", 2)
            assert said == [f"metrics: http://localhost:{port}/metrics"]
            assert shown["query_running,orders"] == 1
            assert shown["batches_total,orders"] == 1
            assert shown["duration_seconds,triggerExecution,orders"] > 0
            assert shown["offsets_behind_latest,max,orders,0"] == 0
            assert shown["query_failures_total,orders"] == 0
            assert shown["stall_lookup_ok"] == 1
            assert f"stalled_offsets,0,{topic.name}" not in shown
            _open = topic.begin([Real(transaction_id="b2")], slot=1)
            shown = scrape(port)
            assert shown[f"stalled_offsets,0,{topic.name}"] >= 1
            assert f"stalled_offsets,1,{topic.name}" not in shown
        finally:
            query.stop()
        scrape_until(port, "query_running,orders", 0)
    assert not [each for each in threading.enumerate() if "prometheus" in each.name.lower()]


def test_sinks_are_shown_beside_the_queries(spark: SparkSession) -> None:
    """Also one whose options are wrong: the scrape shows it, and does not fail."""
    with metrics_served(spark, 0, say=lambda _: None, sinks=[{"app.id": "a b"}]) as port:
        assert scrape(port)["sink_lookup_ok,a b"] == 0


def test_a_failed_query_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    """What nobody looks at until it is missed: a query that ended with an error."""

    def fail(_batch: DataFrame, _number: int) -> None:
        raise ValueError("no")

    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    with metrics_served(spark, 0, say=lambda _: None) as port:
        query = (
            rate.writeStream.foreachBatch(fail)
            .queryName("failing")
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        shown = scrape_until(port, "query_failures_total,failing", 1)
        assert shown["query_running,failing"] == 0
        assert query.exception() is not None


def test_rows_behind_the_watermark_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Spark drops them without an error; here they are a number that can alert."""
    source = tmp_path / "source"
    late = "2025-01-01 00:00:00"
    for number, times in enumerate((["2025-01-02 00:00:00"], ["2025-01-03 00:00:00"], [late])):
        rows = spark.createDataFrame([(each,) for each in times], "at string")
        rows.coalesce(1).write.mode("append").json(str(source / str(number)))
    rows = (
        spark.readStream.schema("at timestamp")
        .option("maxFilesPerTrigger", 1)
        .option("latestFirst", "false")
        .json(f"{source}/*")
        .withWatermark("at", "1 hour")
        .groupBy("at")
        .count()
    )
    with metrics_served(spark, 0, say=lambda _: None) as port:
        query = (
            rows.writeStream.format("noop")
            .outputMode("append")
            .queryName("late")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S_MAX)
        shown = scrape_until(port, "rows_dropped_by_watermark_total,late", 1)
        assert "state_rows,0,late" in shown


def test_no_port_no_server(spark: SparkSession) -> None:
    """Without a port no socket listens, and nothing is logged."""
    with metrics_served(spark, None, say=lambda _: pytest.fail("said something")) as port:
        assert port is None
