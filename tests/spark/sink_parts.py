"""The sink's parts on an installation without a daemon."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import TopicShape, Wanted
from halfbridge.kafka.admin import AdminClient
from halfbridge.serde.records import OpKind
from halfbridge.spark_jobs.sink.attempt import AttemptReport, write_attempt
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.clients import ensure_topics, new_topics
from halfbridge.spark_jobs.sink.manifest import AttemptOutcome
from halfbridge.spark_jobs.sink.options import SinkOptions, parse_options
from halfbridge.spark_jobs.sink.process import sink_process
from halfbridge.testkit.children import Children, Interrupts
from tests.spark.sink_scene import SinkScene, key_of, until, value_of

ROWS = 40


class Sink:
    """The sink's parts on an installation without a daemon.

    Attributes:
        scene: The installation.
        options: Of the sink.
        process: The process whose clients attempts and commits use; by default this one.
    """

    def __init__(self, scene: SinkScene, **options: str) -> None:
        given = scene.options(transaction_messages_max="10", **options)
        del given["checkpointLocation"]
        self.scene = scene
        self.options: SinkOptions = parse_options(given)
        self.process = sink_process()
        ensure_topics(self.options, self.process.ports)

    @property
    def committer(self) -> BatchCommitter:
        """A new one, as Spark makes for each call."""
        return BatchCommitter(self.options, self.process)

    def attempt(self, batch: int = 0, rows: int = ROWS, *, first: int = 0) -> AttemptReport:
        """Write a task attempt."""
        numbers = range(first, first + rows)
        return self.write([(key_of(each), value_of(each)) for each in numbers], batch=batch)

    def write(
        self, rows: Iterable[tuple[bytes | None, bytes]], *, batch: int = 0, topic: str = ""
    ) -> AttemptReport:
        """Write a task attempt of rows with these keys and values."""
        keys, values = zip(*rows, strict=True)
        columns = [pa.array(column, pa.binary()) for column in (keys, values)]
        given = pa.record_batch(columns, names=["key", "value"])
        options = replace(self.options, topic=topic or self.options.topic)
        return write_attempt(options, batch, iter([given]), process=self.process)

    def fate(self, report: AttemptReport, batch: int = 0) -> AttemptOutcome:
        return self.committer.find(batch).state.fate(report.attempt.attempt_id)

    def decided(self, report: AttemptReport) -> set[OpKind | None]:
        """Return the first decisions of an attempt's transactions."""
        decisions = self.scene.decisions()
        return {decisions.get(each.transaction_id) for each in report.attempt.transactions}

    def topic(self, name: str, **settings: str) -> str:
        """Make another real topic and return its name."""
        topic = self.scene.real_name(name)
        wanted = tuple(Wanted(key.replace("_", "."), value) for key, value in settings.items())
        Cluster(self.scene.servers).create(TopicShape(topic, 1, wanted), replication_factor=1)
        return topic

    def alter(self, topic: str, name: str, value: str) -> None:
        """Change a setting of a topic, and return when the broker reports it."""
        admin = AdminClient({"bootstrap.servers": self.scene.servers})
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(20)
        topics = new_topics(self.options, self.process.ports)
        until(f"{name} of {topic}", lambda: topics.settings(topic)[name] == value)


@contextmanager
def sink_parts(servers: str, prefix: str, directory: Path, **options: str) -> Iterator[Sink]:
    """Yield the sink's parts on topics that are made for them."""
    with Children(directory, interrupts=Interrupts(), keep_directory=True) as children:
        yield Sink(SinkScene(servers, prefix, directory, children).make(), **options)
