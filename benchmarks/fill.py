"""Stores half messages that nobody decides, a separate process.

`python -m benchmarks.fill <config>` writes the records of `messages` transactions as a client
writes them, but without a client: a million futures are not what is measured. It prints one JSON
line.
"""

from __future__ import annotations

import json
import sys

from halfbridge.bench.load import BenchConfig, make_keys, make_packer
from halfbridge.bench.plain_clients import make_plain_producer, produce_all
from halfbridge.bench.roles import PRODUCER_GROUP
from halfbridge.serde.avro import HALF_METADATA
from halfbridge.serde.headers import HALF
from halfbridge.serde.identity import TransactionIds
from halfbridge.serde.records import (
    DEFAULT_IMMUNITY,
    NO_OFFSET,
    NO_TIMESTAMP,
    PARTITION_BY_KEY,
    HalfMetadata,
)
from halfbridge.serde.topics import TopicNames

_BORN_HEX = 12  # characters at the beginning of a transaction id: its birth, epoch ms


def main(arguments: list[str]) -> int:
    config = BenchConfig.from_json(arguments[0])
    pack, keys, ids = make_packer(config.size_bytes), make_keys(config.keys), TransactionIds()
    half_topic = TopicNames(config.topic_prefix).half
    records = (
        (
            half_topic,
            pack(0, number),
            keys[number % len(keys)],
            number % config.pairs,
            None,  # no callback, by either of its two names
            None,
            0,  # the time of now
            [(HALF, _metadata(ids.next(), config.real_topic))],
        )
        for number in range(config.messages)
    )
    if not produce_all(make_plain_producer(config.bootstrap_servers), records):
        sys.stderr.write("fill: not all records were acknowledged\n")
        return 1
    sys.stdout.write(json.dumps({"stored": config.messages}) + "\n")
    return 0


def _metadata(transaction_id: str, real_topic: str) -> bytes:
    return HALF_METADATA.encode(
        HalfMetadata(
            transaction_id=transaction_id,
            born_timestamp=int(transaction_id[:_BORN_HEX], 16),
            resume_count=0,
            message_index=0,
            producer_group=PRODUCER_GROUP,
            real_topic=real_topic,
            real_partition=PARTITION_BY_KEY,
            check_times=0,
            immunity_ms=DEFAULT_IMMUNITY,
            first_append_timestamp=NO_TIMESTAMP,
            origin_offset=NO_OFFSET,
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
