"""One Spark session for the tests of a lane (a start takes 5 s, 500 MB); a sink for one test."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from halfbridge.java.jvm import JavaNotFoundError
from halfbridge.java.locked_jars import JarsError
from halfbridge.spark_jobs.capabilities import HAS_DATA_SOURCES
from halfbridge.spark_jobs.session.local import spark_session
from halfbridge.spark_jobs.sink import register
from halfbridge.testkit.children import Children, Interrupts
from halfbridge.testkit.pytest_plugin import leave_out
from tests.spark.sink_parts import Sink, sink_parts
from tests.spark.sink_scene import SinkScene

OPTIONS = {
    "spark.master": "local[2]",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}

# PySpark leaves the sockets through which a driver collects rows to the garbage collector.
PYSPARK_SOCKETS = r"ignore:unclosed <socket.socket .*raddr=\('127.0.0.1', \d+\)>:ResourceWarning"
# PySpark 3.5 compares the versions of pandas and pyarrow by a class that setuptools deprecates.
PYSPARK_VERSIONS = r"ignore:distutils Version classes are deprecated:DeprecationWarning"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Ignore these warnings, in this directory only."""
    item.add_marker(pytest.mark.filterwarnings(PYSPARK_SOCKETS))
    item.add_marker(pytest.mark.filterwarnings(PYSPARK_VERSIONS))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield a session with the connector; without Java or jars skip, or fail if CI=true."""
    with ExitStack() as stack:
        try:
            session = stack.enter_context(spark_session("halfbridge-tests", options=OPTIONS))
        except (JarsError, JavaNotFoundError) as error:
            leave_out(str(error))
        yield session


@pytest.fixture
def scene(
    spark: SparkSession, kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> Iterator[SinkScene]:
    """An installation with a running daemon."""
    if HAS_DATA_SOURCES:
        register(spark)
    with Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as children:
        scene = SinkScene(kafka_bootstrap_servers, topic_prefix, tmp_path, children).make()
        scene.daemon()
        yield scene


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Interpret plans of a few hundred rows: compiling them takes ten times as long."""
    names = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


@pytest.fixture
def sink(kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> Iterator[Sink]:
    """Yield the sink's parts, on an installation without a daemon."""
    with sink_parts(kafka_bootstrap_servers, topic_prefix, tmp_path) as sink:
        yield sink
