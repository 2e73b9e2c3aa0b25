"""Fills an installation of its own with transactions, to measure `halfbridge tx` on it.

    python -m tests.kit.fill_logs --bootstrap-servers 127.0.0.1:9092 --topic-prefix m- \
        --undecided 100000 --settled 1500000

A settled transaction has a half message, a COMMIT and a real record, written here as client and
daemon write them, and the committed offsets of a daemon that has applied all. The undecided ones
come last. Prints the ids of a settled transaction in the middle and of the last one, as JSON.
"""

import json
from typing import Any

import click
from confluent_kafka import Producer

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import HALF_RETENTION_MS, Layout, TopicShape
from halfbridge.checker.admin.topics import create_topics
from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import HALF, real_headers
from halfbridge.serde.identity import TransactionIds
from halfbridge.serde.progress import Progress
from halfbridge.serde.topics import TopicNames
from tests.kit.records import A_HALF, AN_OP

PAIRS = 4
GROUP = "orders-service"
_VALUE = b"x" * 100
_SERVE_EVERY = 1_000
_QUEUED_MAX = 900_000


class Filler:
    """Writes transactions, spread over all pairs.

    Args:
        servers: Brokers.
        names: Of the installation's topics.
    """

    def __init__(self, servers: str, names: TopicNames) -> None:
        self._names = names
        self._real = f"{names.prefix}orders"
        self._cluster = Cluster(servers)
        self._ids = TransactionIds()
        self._halves = [0] * PAIRS
        self._ops = [0] * PAIRS
        self._sent = 0
        self._producer: Any = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def make(self) -> None:
        layout = Layout(
            partitions=PAIRS,
            replication_factor=1,
            retention_ms=HALF_RETENTION_MS,
            producer_groups=(GROUP,),
        )
        create_topics(self._cluster, self._names, layout)
        self._cluster.create(TopicShape(self._real, PAIRS, ()), replication_factor=1)

    def half(self) -> tuple[str, int]:
        """Write a half message; return its id and pair."""
        identity, pair = self._ids.next(), self._sent % PAIRS
        metadata = A_HALF._replace(
            transaction_id=identity,
            producer_group=GROUP,
            real_topic=self._real,
            born_timestamp=int(identity[:12], 16),
        )
        header = (HALF, HALF_METADATA.encode(metadata))
        self._write(self._names.half, pair, _VALUE, [header])
        self._halves[pair] += 1
        return identity, pair

    def settled(self) -> str:
        """Write a committed and delivered transaction; return its id."""
        identity, pair = self.half()
        op = AN_OP._replace(
            transaction_id=identity,
            producer_group=GROUP,
            half_offset=self._halves[pair] - 1,
            message_count=1,
        )
        self._write(self._names.op, pair, OP.encode(op), [])
        self._ops[pair] += 1
        self._write(self._real, pair, _VALUE, real_headers([], identity, 0))
        return identity

    def commit(self) -> None:
        """Commit what a daemon would have committed that has applied all ops so far."""
        self.flush()
        for pair in range(PAIRS):
            half, op = self._halves[pair], self._ops[pair]
            progress = Progress(half, op, half, max(0, op - 10_000), half)
            self._cluster.commit(
                self._names.daemon_group,
                {
                    (self._names.half, pair): (half, ""),
                    (self._names.op, pair): (op, progress.metadata()),
                },
            )

    def flush(self) -> None:
        """Return once everything is stored."""
        assert self._producer.flush(120) == 0

    def _write(self, topic: str, pair: int, value: bytes, headers: list[Any]) -> None:
        while len(self._producer) >= _QUEUED_MAX:
            self._producer.poll(0.1)
        self._producer.produce(topic, value, b"key", pair, headers=headers)
        self._sent += topic == self._names.half
        if self._sent % _SERVE_EVERY == 0:
            self._producer.poll(0)


@click.command()
@click.option("--bootstrap-servers", required=True)
@click.option("--topic-prefix", required=True)
@click.option("--undecided", type=int, default=0)
@click.option("--settled", type=int, default=0)
def main(bootstrap_servers: str, topic_prefix: str, undecided: int, settled: int) -> None:
    """Fill an installation."""
    filler = Filler(bootstrap_servers, TopicNames(topic_prefix))
    filler.make()
    middle = last = ""
    for number in range(settled):
        last = filler.settled()
        if number == settled // 2:
            middle = last
    filler.commit()
    for _ in range(undecided):
        last, _ = filler.half()
    filler.flush()
    click.echo(json.dumps({"middle": middle, "last": last}))


if __name__ == "__main__":
    main()
