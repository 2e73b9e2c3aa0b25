"""What the cluster says of itself, asked through the Kafka client that Spark has loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it ships no types

from spark_jobs.errors import JobError, cause_of
from spark_jobs.storage import jvm_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from spark_jobs.io import Topics

_ANSWER_S_MAX = 30


class ClusterAdmin:
    """A Java admin client. Close it after use.

    Args:
        spark: A session with the Kafka connector.
        bootstrap_servers: `host:port`, separated by commas.
        kafka: Client properties by their Kafka names (security, say).

    Raises:
        JobError: the properties are wrong; the user must act.
    """

    def __init__(
        self, spark: SparkSession, bootstrap_servers: str, kafka: Mapping[str, str] | None = None
    ) -> None:
        self._jvm = jvm_of(spark)
        self._servers = bootstrap_servers
        properties = self._jvm.java.util.Properties()
        answer_ms = str(_ANSWER_S_MAX * 1000)
        given = {"default.api.timeout.ms": answer_ms, "request.timeout.ms": answer_ms}
        for name, value in {**given, **(kafka or {})}.items():
            properties.setProperty(name, value)
        properties.setProperty("bootstrap.servers", bootstrap_servers)
        try:
            self._admin = self._kafka.clients.admin.AdminClient.create(properties)
        except TypeError as error:  # what py4j makes of a class that is not there
            raise JobError(
                "this Spark session has no Kafka connector: give spark-submit --packages or --jars"
                " (docs/spark.md)"
            ) from error
        except Py4JJavaError as error:
            raise JobError(f"no client for {bootstrap_servers}: {cause_of(error)}") from error

    def cluster_id(self) -> str:
        """Return the id that the cluster got when it was made.

        Raises:
            JobError: it does not answer; the user must act.
        """
        found: str = self._get(self._admin.describeCluster().clusterId())
        return found

    def stalls(self, topics: Topics) -> dict[tuple[str, int], int]:
        """Return how many offsets open kafka_txns hide, for each partition that has any.

        A reader of committed records sees nothing behind the last stable offset, and no error.

        Raises:
            JobError: the cluster does not answer, or a topic is not there; the user must act.
        """
        partitions = list(self._partitions(topics))
        ends = self._ends(partitions, "READ_UNCOMMITTED")
        stable = self._ends(partitions, "READ_COMMITTED")
        return {
            (where.topic(), where.partition()): ends[index] - stable[index]
            for index, where in enumerate(partitions)
            if ends[index] > stable[index]
        }

    def create_topic(self, name: str, partitions: int) -> None:
        """Make a topic with the cluster's own replication factor.

        Raises:
            JobError: the cluster refuses; the user must act.
        """
        optional = self._jvm.java.util.Optional
        topic = self._kafka.clients.admin.NewTopic(name, optional.of(partitions), optional.empty())
        self._get(self._admin.createTopics([topic]).all())

    def delete_topic(self, name: str) -> None:
        """Remove a topic.

        Raises:
            JobError: the cluster refuses; the user must act.
        """
        self._get(self._admin.deleteTopics([name]).all())

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    @property
    def _kafka(self) -> Any:
        return self._jvm.org.apache.kafka

    def _partitions(self, topics: Topics) -> Iterator[Any]:
        names = topics.names
        if topics.pattern:
            pattern = self._jvm.java.util.regex.Pattern.compile(topics.pattern)
            all_names = self._get(self._admin.listTopics().names())
            names = tuple(name for name in all_names if pattern.matcher(name).matches())
        described = self._get(self._admin.describeTopics(list(names)).allTopicNames())
        for name in sorted(described):
            for info in described[name].partitions():
                yield self._kafka.common.TopicPartition(name, info.partition())

    def _ends(self, partitions: list[Any], isolation: str) -> list[int]:
        admin = self._kafka.clients.admin
        level = getattr(self._kafka.common.IsolationLevel, isolation)
        wanted = self._jvm.java.util.HashMap()
        for where in partitions:
            wanted.put(where, admin.OffsetSpec.latest())
        result = self._admin.listOffsets(wanted, admin.ListOffsetsOptions(level))
        return [self._get(result.partitionResult(where)).offset() for where in partitions]

    def _get(self, future: Any) -> Any:
        try:
            return future.get(_ANSWER_S_MAX, self._jvm.java.util.concurrent.TimeUnit.SECONDS)
        except Py4JJavaError as error:
            raise JobError(f"{self._servers} does not answer: {cause_of(error)}") from error
