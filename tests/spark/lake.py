"""Tables of a catalog for tests: a driver's session, and the rows as other engines read them."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from halfbridge.java.locked_jars import JarsError
from halfbridge.spark_jobs.session.jars import table_jars
from halfbridge.testkit.pytest_plugin import leave_out
from tests.kit.caches import jar_settings
from tests.spark.real_topic import RealTopic

DRIVER = Path(__file__).with_name("lake_driver.py")
START_S_MAX = 600.0
SESSION = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
ICEBERG = {"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog"}


@dataclass(frozen=True)
class Lake:
    """One table in a directory of a test's own."""

    directory: Path
    kind: str  # iceberg, delta
    uri: str = ""  # of a REST catalog; empty: a catalog in a Hadoop file system

    @property
    def table(self) -> str:
        return "lake.sales.orders" if self.kind == "iceberg" else f"delta.`{self.directory}/table`"

    @property
    def catalog(self) -> Mapping[str, str]:
        if self.kind == "delta":
            return DELTA
        warehouse = str(self.directory / "warehouse")
        lake = {"type": "hadoop", "warehouse": warehouse}
        if self.uri:
            lake = {"type": "rest", "uri": self.uri}
        return {**ICEBERG, **{f"spark.sql.catalog.lake.{name}": lake[name] for name in lake}}

    def check_jars(self) -> None:
        """Skip the test if the jars of the format cannot be fetched for this Spark."""
        pytest.importorskip("pyiceberg" if self.kind == "iceberg" else "deltalake")
        pyspark = pytest.importorskip("pyspark")
        try:
            table_jars(pyspark.__version__, jar_settings(), self.catalog)
        except JarsError as error:
            leave_out(str(error))

    def start(
        self, topic: RealTopic, moment: str, where: object, *more: str
    ) -> subprocess.Popen[str]:
        """Start a driver as `lake_driver` describes, in a process group of its own."""
        options = {**SESSION, **self.catalog}
        return subprocess.Popen(
            [
                *(sys.executable, str(DRIVER), moment, str(where)),
                *("--bootstrap-servers", topic.servers, "--topic", topic.name),
                *("--table", self.table, "--format", self.kind, "--json"),
                *("--checkpoint", str(self.directory / "checkpoint")),
                *(f"--spark-opt={name}={value}" for name, value in options.items()),
                *more,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def rows(self) -> list[tuple[str, bytes]]:
        """Return transaction and value of each row, sorted, as read by an engine without Spark."""
        read = self.read()
        columns = (read["transaction_id"].to_pylist(), read["value"].to_pylist())
        return sorted(zip(*columns, strict=True))

    def read(self) -> Any:
        """Return the table's rows in Arrow, as read by an engine without Spark."""
        return self.iceberg().scan().to_arrow() if self.kind == "iceberg" else self._delta()

    def iceberg(self) -> Any:
        """Return the Iceberg table, opened with pyiceberg."""
        if self.uri:
            from pyiceberg.catalog import load_catalog  # noqa: PLC0415  # where it is installed

            return load_catalog("lake", type="rest", uri=self.uri).load_table("sales.orders")
        from pyiceberg.table import StaticTable  # noqa: PLC0415  # where it is installed

        metadata = (self.directory / "warehouse/sales/orders/metadata").glob("v*.metadata.json")
        newest = max(metadata, key=lambda path: int(path.name.split(".")[0][1:]))
        return StaticTable.from_metadata(str(newest))

    def _delta(self) -> Any:
        from deltalake import DeltaTable  # noqa: PLC0415  # where it is installed

        return DeltaTable(str(self.directory / "table")).to_pyarrow_table()
