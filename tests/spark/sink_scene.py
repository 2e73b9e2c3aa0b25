"""A scene for the sink: an installation with a running daemon, rows to send, and what came out."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from halfbridge.bridge import Message, Resolution, TransactionProducer
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import HALF_RETENTION_MS, Layout, TopicShape
from halfbridge.checker.admin.topics import create_topics
from halfbridge.kafka.admin import AdminClient
from halfbridge.serde.headers import parse_half
from halfbridge.serde.manifest import BATCH_MANIFEST, BatchManifest
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.records import OpKind
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.children import Child, Children
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.reader import read_all, read_ops
from tests.kit import waiting

ROOT = Path(__file__).parents[2]
APP = "feed"
HALF_PARTITIONS = 2
REAL_PARTITIONS = 3
KEYS = 7
# Spark shares the machine with brokers; a look asks one of them.
until = partial(waiting.until, within_s=120.0, every_s=0.05)
SCHEMA = "key binary, value binary"
# Checks come early and often, so that what they settle is settled within a test.
LIMITS = {
    "TRANSACTION_TIMEOUT_MS": "1000",
    "CHECK_INTERVAL_MS": "1000",
    "CHECK_BACKOFF_MS_MAX": "2000",
    "CHECK_COUNT_MAX": "3",
}


def value_of(number: int) -> bytes:
    """Return the value of a row."""
    return b"row-%06d" % number


def key_of(number: int) -> bytes:
    """Return its key; keys repeat, so that there is an order to be kept."""
    return b"key-%d" % (number % KEYS)


@dataclass
class SinkScene:
    """One installation, its daemon, and files that a stream reads one a batch.

    Attributes:
        servers: Bootstrap servers.
        prefix: Of all topics.
        directory: Rows, checkpoints, logs.
        children: Starts and ends the processes.
    """

    servers: str
    prefix: str
    directory: Path
    children: Children
    _files: int = 0
    _sent: list[int] = field(default_factory=list)
    _names: Counter[str] = field(default_factory=Counter)

    @property
    def names(self) -> TopicNames:
        return TopicNames(self.prefix)

    @property
    def orders(self) -> str:
        """The real topic."""
        return f"{self.prefix}orders"

    @property
    def fixes(self) -> str:
        """Another real topic."""
        return self.real_name("fixes")

    def real_name(self, name: str) -> str:
        """Return the full name of a real topic."""
        return f"{self.prefix}{name}"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint"

    @property
    def rows(self) -> Path:
        """Where the stream's files are."""
        return self.directory / "rows"

    def make(self) -> SinkScene:
        """Make the topics; `daemon` starts the daemon."""
        cluster = Cluster(self.servers)
        layout = Layout(
            partitions=HALF_PARTITIONS, replication_factor=1, retention_ms=HALF_RETENTION_MS
        )
        create_topics(cluster, self.names, layout)
        for topic in (self.orders, self.fixes):
            cluster.create(TopicShape(topic, REAL_PARTITIONS, ()), replication_factor=1)
        cluster.create(TopicShape(self._fence_topic, 1, ()), replication_factor=1)
        self.rows.mkdir(parents=True, exist_ok=True)
        return self

    def daemon(self, *more: str) -> Child:
        """Start a real `halfbridge checker run`, with more words if given."""
        return self.start(
            "daemon",
            *("-m", "halfbridge", "checker", "run", "--bootstrap-servers", self.servers),
            *("--topic-prefix", self.prefix, "--state-dir", str(self.directory / "state")),
            *more,
        )

    def responder(self, app: str = APP) -> Child:
        """Start a real `halfbridge spark responder`."""
        return self.start(
            "responder",
            *("-m", "halfbridge", "spark", "responder", "--bootstrap-servers", self.servers),
            *("--topic-prefix", self.prefix, "--app-id", app),
        )

    def start(self, name: str, *words: str, environ: Mapping[str, str] | None = None) -> Child:
        """Start a Python process that ends with the scene."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith("HALFBRIDGE_")}
        cache = {k: v for k, v in os.environ.items() if k == "HALFBRIDGE_CACHE_DIR"}
        limits = {f"HALFBRIDGE_{key}": value for key, value in LIMITS.items()}
        self._names[name] += 1
        return self.children.start(
            f"{name}-{self._names[name]}",
            (sys.executable, *words),
            environ={**ours, **cache, **limits, "PYTHONPATH": str(ROOT), **(environ or {})},
        )

    # --- what goes in ----------------------------------------------------------------------

    def add_file(self, count: int) -> list[int]:
        """Add a file with so many new rows; a stream takes it as one batch."""
        numbers = list(range(len(self._sent), len(self._sent) + count))
        self._sent += numbers
        self.write_file(self._files, numbers)
        self._files += 1
        return numbers

    def write_file(self, file: int, numbers: list[int]) -> None:
        """Write a file with these rows, also in place of one that is there."""
        columns = {"key": map(key_of, numbers), "value": map(value_of, numbers)}
        table = pa.table({name: pa.array(list(rows)) for name, rows in columns.items()})
        path = self.rows / f"{file:04d}.parquet"
        # Of one size: Spark takes the largest first where a batch has two files.
        pq.write_table(table, path, compression="none")
        # The file source takes the oldest first, by whole milliseconds.
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))

    def forget_commit(self, batch: int, checkpoint: Path | None = None) -> None:
        """Delete what says that Spark has committed a batch: it runs it again."""
        for path in (f"{batch}", f".{batch}.crc"):
            ((checkpoint or self.checkpoint) / "commits" / path).unlink(missing_ok=True)

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the files as a stream, one file a batch."""
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.rows))

    def options(self, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.servers,
            "halfbridge.prefix": self.prefix,
            "app.id": APP,
            "topic": self.orders,
            "checkpointLocation": str(self.checkpoint),
            **{name.replace("_", "."): value for name, value in more.items()},
        }

    def run(self, frame: DataFrame, sink: str = "txn_half", **options: str) -> None:
        """Run a stream over all that is there; raise what it raises."""
        query = self.begin(frame, sink, **options)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def begin(self, frame: DataFrame, sink: str = "txn_half", **options: str) -> StreamingQuery:
        """Start a stream over all that is there."""
        writer = frame.writeStream.format(sink).options(**self.options(**options))
        return writer.trigger(availableNow=True).start()

    # --- what came out ---------------------------------------------------------------------

    def settled(self, topic: str = "") -> list[ReadRecord]:
        """Return a real topic's records once every decision written so far has had its effect.

        Shown by a fence: a later transaction through each half partition, for ops apply in order.
        """
        before = len(self.read(self._fence_topic))
        keys = {partition_of(b"%d" % n, HALF_PARTITIONS): b"%d" % n for n in range(50)}
        with TransactionProducer(
            bootstrap_servers=self.servers,
            producer_group="fence",
            topic_prefix=self.prefix,
            checker=lambda _: Resolution.UNKNOWN,
        ) as producer:
            for key in keys.values():
                with producer.begin() as transaction:
                    transaction.send(Message(self._fence_topic, key=key, value=b"fence"))
        until("the fence", lambda: len(self.read(self._fence_topic)) == before + len(keys))
        return self.read(topic or self.orders)

    def undecided(self) -> set[str]:
        """Return the transactions without a decision in the op topic."""
        halves = {parse_half(each.headers)[0].transaction_id for each in self.read(self.names.half)}
        return halves - set(self.decisions())

    def decisions(self) -> dict[str, OpKind]:
        """Return the first decision of each transaction."""
        first: dict[str, OpKind] = {}
        for each in read_ops(self.read(self.names.op)):
            if each.op.kind is not OpKind.UNKNOWN:
                first.setdefault(each.op.transaction_id, each.op.kind)
        return first

    def ops(self, partition: int) -> list[tuple[str, OpKind]]:
        """Return transaction and kind of all ops of a partition, in order."""
        ops = read_ops(self.read(self.names.op))
        return [
            (each.op.transaction_id, each.op.kind) for each in ops if each.partition == partition
        ]

    def story(self) -> str:
        """Return who decided what in which order, and what the manifests list: for failures."""
        lines = [
            f"op [{each.partition}]@{each.offset} {each.op.kind.value} {each.op.transaction_id}"
            f" by {each.op.source.value} {each.op.actor}"
            for each in read_ops(self.read(self.names.op))
            if each.op.kind is not OpKind.UNKNOWN
        ]
        for manifest in self.manifests():
            listed = [
                f"{each.transaction_id}[{each.half_partition}]"
                for attempt in manifest.attempts
                for each in attempt.transactions
            ]
            lines.append(
                f"batch {manifest.batch_id} {manifest.kind.value} by {manifest.actor}: {listed}"
            )
        return "\n".join(lines)

    def manifests(self) -> list[BatchManifest]:
        """Return all manifests, in offset order."""
        return [BATCH_MANIFEST.decode(each.value or b"") for each in self.read(self.names.manifest)]

    def read(self, topic: str) -> list[ReadRecord]:
        """Return what a read_committed consumer sees of a topic now."""
        return read_all(self.servers, [topic])

    @property
    def _fence_topic(self) -> str:
        return f"{self.prefix}fence"

    def topics(self) -> set[str]:
        """Return the installation's topics."""
        admin: Any = AdminClient({"bootstrap.servers": self.servers})
        return {
            name for name in admin.list_topics(timeout=20).topics if name.startswith(self.prefix)
        }


def check_exactly_once(records: Iterable[ReadRecord], numbers: Iterable[int]) -> None:
    """Fail unless every row is there once, under its key, and in the order of its key."""
    records = list(records)
    assert Counter(each.value for each in records) == Counter(map(value_of, numbers))
    by_key: dict[bytes | None, list[ReadRecord]] = defaultdict(list)
    for each in sorted(records, key=lambda record: (record.partition, record.offset)):
        by_key[each.key].append(each)
    for key, found in by_key.items():
        assert len({each.partition for each in found}) == 1, f"{key!r} in several partitions"
        late = [
            (before, after)
            for before, after in pairwise(found)
            if (before.value or b"") > (after.value or b"")
        ]
        assert not late, f"out of order under {key!r}: {late}"
    for each in records:
        assert each.key == key_of(int((each.value or b"").rpartition(b"-")[2]))
