"""A Spark Connect client that prints an installation's transactions and messages as JSON.

    python tests/spark/connect_client.py ADDRESS SERVERS PREFIX TOPIC

A process of its own: a process that has used a session of a driver cannot be such a client. The
package pyspark-client has no Py4J, so no module imported here may need it.
"""

import importlib
import json
import sys

from pyspark.sql import SparkSession, functions
from pyspark.sql.avro import functions as avro

for name in [each for each in sys.modules if each.partition(".")[0] == "py4j"]:
    sys.modules[name] = None  # type: ignore[assignment]  # makes importing it an error

from halfbridge.cli.spark import JOBS  # noqa: E402  (Py4J is hidden)
from halfbridge.serde.topics import TopicNames  # noqa: E402  (Py4J is hidden)
from halfbridge.spark import (  # noqa: E402  (Py4J is hidden)
    JsonPayload,
    decode_half,
    decode_op,
    read_messages,
    read_transactions,
)

__all__ = ["avro", "functions"]  # imported before Py4J was hidden


def main(address: str, servers: str, prefix: str, topic: str) -> None:
    """Print one JSON object."""
    spark = SparkSession.builder.remote(address).getOrCreate()
    names = TopicNames(prefix)
    raw = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("includeHeaders", "true")
    )
    found = read_transactions(spark, bootstrap_servers=servers, topics=topic, prefix=prefix)
    payload = JsonPayload("id INT")
    messages = read_messages(spark, bootstrap_servers=servers, topics=topic, payload=payload)
    halves = decode_half(raw.option("subscribe", names.half).load())
    ops = decode_op(raw.option("subscribe", names.op).load())
    said = {
        "has_jvm": hasattr(spark, "_jvm"),
        "jobs": sorted(
            job for job, (module, _) in JOBS.items() if importlib.import_module(module).main
        ),
        "transactions": {row["transaction_id"]: row["state"] for row in found.collect()},
        "messages": [(row["transaction_id"], row["payload_error"]) for row in messages.collect()],
        "errors": [
            sorted(row["error"] for row in frame.where("error is not null").collect())
            for frame in (halves, ops)
        ],
    }
    print(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
