"""Transactions of a real installation as a frame, in a driver and in a Spark Connect client."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from halfbridge.cli.spark import JOBS
from halfbridge.serde import headers as names
from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.records import DeadReason
from halfbridge.spark import read_transactions
from halfbridge.spark_jobs.reading.wire import MISSING, NOT_OURS
from halfbridge.spark_jobs.session.jars import connector_jars
from halfbridge.testkit.children import Children, Interrupts
from halfbridge.testkit.ports import free_ports
from tests.integration.installation import Installation
from tests.kit.caches import jar_settings
from tests.kit.records import A_LETTER
from tests.spark.marks import INTERPRETED
from tests.spark.real_topic import Real, RealTopic

pytestmark = [*INTERPRETED, pytest.mark.broker]

CLIENT = Path(__file__).with_name("connect_client.py")
# That of an environment with pyspark-client in the place of PySpark, for example.
CLIENT_PYTHON = os.environ.get("HALFBRIDGE_CONNECT_PYTHON", sys.executable)
NOTEBOOK = Path(__file__).parents[2] / "examples" / "spark_notebook.py"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
PROCESS_S_MAX = 400.0  # a JVM's start on a busy machine, which the client waits for


@pytest.fixture
def states(installation: Installation) -> dict[str, str]:
    """Transactions in each state, and records that nobody can decode: id -> state."""
    installation.make(partitions=2)
    orders = installation.topic("orders", retention_ms="-1")  # the delivery is of a day long past
    delivered, back, refused, pending, waits = (
        installation.half(orders, partition=number % 2) for number in range(5)
    )
    for half in (delivered, refused, pending):
        installation.commit(half)
    installation.rollback(back)
    RealTopic(installation.servers, orders).commit(Real(transaction_id=delivered.transaction_id))
    letter = A_LETTER._replace(
        reason=DeadReason.NOT_ALLOWED,
        source_topic=installation.names.half,
        source_partition=refused.partition,
        source_offset=refused.offset,
    )
    its = installation.half_header(orders, refused.transaction_id)
    installation.write(
        installation.names.dead,
        b"value",
        headers=[(names.HALF, its), (names.DEAD, DEAD_LETTER.encode(letter))],
    )
    for topic in (installation.names.half, installation.names.op, installation.names.dead):
        installation.write(topic, b"junk")
    return {
        delivered.transaction_id: "delivered",
        back.transaction_id: "rolled_back",
        refused.transaction_id: "refused",
        pending.transaction_id: "committed",
        waits.transaction_id: "undecided",
    }


@pytest.mark.feature
def test_transactions_of_an_installation(
    spark: SparkSession, installation: Installation, states: dict[str, str]
) -> None:
    """Each with its state; from `start` on only those that began later."""
    where: dict[str, Any] = {
        "bootstrap_servers": installation.servers,
        "topics": installation.real("orders"),
        "prefix": installation.names.prefix,
    }
    found = read_transactions(spark, **where).collect()
    assert {row["transaction_id"]: row["state"] for row in found} == states
    assert read_transactions(spark, **where, start="2100-01-01").collect() == []
    with pytest.raises(ValueError, match="earliest or a time"):
        read_transactions(spark, **where, start='{"orders": {"0": 1}}')


def test_the_notebook_draws_its_pictures(
    spark: SparkSession,
    installation: Installation,
    states: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """examples/spark_notebook.py, unchanged, in an existing session."""
    pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALFBRIDGE_BOOTSTRAP_SERVERS", installation.servers)
    monkeypatch.setenv("HALFBRIDGE_TOPIC_PREFIX", installation.names.prefix)
    monkeypatch.setenv("SHOP_TOPIC", installation.real("orders"))
    its = run_path(str(NOTEBOOK))
    assert its["spark"] is spark
    assert its["found"].count() == len(states)
    assert len(its["latency_ms"]) == len(its["SHARES"])
    assert list(its["counts"].values()) == [1]
    for name in ("spark-latency.png", "spark-undecided.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    its["found"].unpersist()
    its["plt"].close("all")


@pytest.fixture
def connect_server(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """Yield the address of a Spark Connect server; `spark` is there for its jars."""
    (port,) = free_ports(1)
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--class", SERVER, "--master", "local[1]"),
        *("--jars", ",".join(map(str, connector_jars(pyspark.__version__, jar_settings())))),
        *("--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.sql.shuffle.partitions=1"),
        *("--conf", "spark.sql.codegen.wholeStage=false"),
    ]
    with Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as children:
        children.start("connect-server", command, environ=dict(os.environ))
        yield f"sc://127.0.0.1:{port}"


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="the wheel has no server")
def test_a_connect_client_reads_the_same(
    connect_server: str, installation: Installation, states: dict[str, str]
) -> None:
    """Without a JVM of its own, on a real server."""
    orders = installation.real("orders")
    done = subprocess.run(
        [
            *(CLIENT_PYTHON, str(CLIENT), connect_server),
            *(installation.servers, installation.names.prefix, orders),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_S_MAX,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    (delivered,) = [each for each, state in states.items() if state == "delivered"]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "has_jvm": False,
        "jobs": sorted(JOBS),
        "transactions": states,
        "messages": [[delivered, "cannot be decoded with the given schema"]],
        "errors": [[MISSING], [NOT_OURS]],
    }
