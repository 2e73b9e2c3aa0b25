"""A million messages of an outage: written past the client, whose slowness is not the point."""

import os
import re
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import HALF
from halfbridge.serde.identity import TRANSACTION_IDS
from halfbridge.testkit.children import Child
from halfbridge.testkit.ports import free_ports
from tests.faults.stage import Stage
from tests.kit.http import answer_of
from tests.kit.records import A_HALF, AN_OP

PARTITIONS = 4
_BODY_BYTES = 1024
_NUMBER_BYTES = 8
_FLUSH_S = 120
_ROOT = Path(__file__).parents[2]


class Mass:
    """Transactions of one message each, `number` on half partition and real partition number % 4.

    Their bodies are 1 KB: the number, and bytes that are the same in all of them.
    """

    def __init__(self, stage: Stage, *, producer_group: str, real_topic: str) -> None:
        self._stage = stage
        self._group = producer_group
        self._topic = real_topic
        self._tail = os.urandom(_BODY_BYTES - _NUMBER_BYTES)
        self._ids: list[str] = []
        self._producer: Any = Producer(
            {
                "bootstrap.servers": stage.servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "queue.buffering.max.kbytes": 400_000,
            }
        )

    @property
    def transaction_ids(self) -> list[str]:
        return self._ids

    def body(self, number: int) -> bytes:
        return number.to_bytes(_NUMBER_BYTES, "big") + self._tail

    def store_halves(self, count: int) -> None:
        """Write half messages as a client does whose process dies before it decides."""
        now_ms = time.time_ns() // 1_000_000
        for number in range(count):
            transaction_id = TRANSACTION_IDS.next()
            self._ids.append(transaction_id)
            metadata = A_HALF._replace(
                transaction_id=transaction_id,
                born_timestamp=now_ms,
                producer_group=self._group,
                real_topic=self._topic,
                real_partition=number % PARTITIONS,
            )
            headers = [(HALF, HALF_METADATA.encode(metadata))]
            self._produce(
                self._stage.names.half,
                value=self.body(number),
                partition=number % PARTITIONS,
                headers=headers,
            )
        self._flush()

    def store_commits(self) -> None:
        """Write the decision of each: COMMIT, of one message, where the half topic was empty."""
        now_ms = time.time_ns() // 1_000_000
        for number, transaction_id in enumerate(self._ids):
            op = AN_OP._replace(
                transaction_id=transaction_id,
                timestamp=now_ms,
                half_offset=number // PARTITIONS,
                producer_group=self._group,
                message_count=1,
            )
            self._produce(
                self._stage.names.op,
                key=transaction_id,
                value=OP.encode(op),
                partition=number % PARTITIONS,
            )
        self._flush()

    def _produce(self, topic: str, **record: Any) -> None:
        while not self._took(topic, record):
            self._producer.poll(0.05)

    def _took(self, topic: str, record: dict[str, Any]) -> bool:
        try:
            self._producer.produce(topic, **record)
        except BufferError:
            return False
        return True

    def _flush(self) -> None:
        assert self._producer.flush(_FLUSH_S) == 0


class Worker:
    """One `checker run` with the default limits, and what it tells of itself."""

    def __init__(self, stage: Stage, name: str) -> None:
        (self._port,) = free_ports(1)
        command = (
            *(sys.executable, "-m", "halfbridge", "checker", "run"),
            *("--bootstrap-servers", stage.servers, "--topic-prefix", stage.prefix),
            *("--metrics-port", str(self._port), "--state-dir", str(stage.directory / "state")),
        )
        ours = {k: v for k, v in os.environ.items() if not k.startswith("HALFBRIDGE_")}
        self.child: Child = stage.children.start(
            name, command, environ={**ours, "PYTHONPATH": str(_ROOT)}
        )

    def get(self, path: str) -> str:
        """Return what it answers with status 200; else an empty text."""
        status, text = answer_of(f"http://127.0.0.1:{self._port}{path}", within_s=5)
        return text if status == HTTPStatus.OK else ""

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        lines = self.get("/metrics").splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def peak_mib(self) -> int:
        """Return the most memory it ever had, as the kernel counts it."""
        status = Path(f"/proc/{self.child.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) // 1024
