"""The process's environment: the library reads it here, commands in `halfbridge.cli`.

Variables of settings are named by the classes of the settings, and all others here.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLES = os.environ

# Either name turns prometheus_client's multiprocess mode on.
PROMETHEUS_MULTIPROCESS = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
OTEL_TRACES_EXPORTER = "OTEL_TRACES_EXPORTER"
XDG_CACHE_HOME = "XDG_CACHE_HOME"
JAVA_HOME = "JAVA_HOME"
PYSPARK_PYTHON = "PYSPARK_PYTHON"
# Set for a driver that spark-submit or a Connect client started: the platform owns its session.
SPARK_PLATFORM = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")
# What else Spark's launcher puts on the driver's class path.
SPARK_CLASS_PATH = (
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
)


@contextmanager
def changed(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the process for the time of a block."""
    before = {name: VARIABLES.get(name) for name in variables}
    VARIABLES.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del VARIABLES[name]
            else:
                VARIABLES[name] = value
