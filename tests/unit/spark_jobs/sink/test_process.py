"""The driver and the tasks of the sink, each as a process of its own, on a broker in memory."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from halfbridge.kafka.ports import Edge, NewTopic
from halfbridge.serde.manifest import ManifestKind
from halfbridge.spark_jobs.sink.attempt import AttemptReport, write_attempt
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.clients import ensure_topics
from halfbridge.spark_jobs.sink.errors import AttemptGivenUpError
from halfbridge.spark_jobs.sink.manifest import Fate
from halfbridge.spark_jobs.sink.options import parse_options
from halfbridge.spark_jobs.sink.process import SinkProcess, sink_process
from halfbridge.testkit.memory.machine import Machine

OPTIONS = parse_options({"kafka.bootstrap.servers": "memory", "app.id": "feed", "topic": "orders"})
NAMES = OPTIONS.names
PARTITIONS = 2


class Installation:
    """A broker in memory with the installation's topics, and processes of Spark's."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        driver = self.process("driver")
        topics = [NewTopic(name, PARTITIONS, 1, {}) for name in (NAMES.half, NAMES.op, "orders")]
        self._admin = driver.ports.kafka.admin({"bootstrap.servers": "memory"})
        for answer in self._admin.create_topics(topics, 10.0).values():
            answer.result()
        ensure_topics(OPTIONS, driver.ports)

    def process(self, name: str) -> SinkProcess:
        return SinkProcess(self._machine.ports(self._machine.process(name)))

    def attempt(self, name: str, batch: int) -> AttemptReport:
        """Run a task attempt in a process of its own."""
        rows = pa.record_batch([pa.array([b"a", b"b", b"c"], pa.binary())], names=["value"])
        return write_attempt(OPTIONS, batch, iter([rows]), process=self.process(name))

    def committer(self, name: str) -> BatchCommitter:
        """Return what commits in a process of its own."""
        return BatchCommitter(OPTIONS, self.process(name))

    def ops(self) -> int:
        """Return how many decisions were written."""
        places = [(NAMES.op, number) for number in range(PARTITIONS)]
        return sum(each.result() for each in self._admin.ask_ends(places, Edge.END, 10.0).values())


@pytest.fixture
def installation() -> Iterator[Installation]:
    with Machine() as machine:
        yield Installation(machine)


def test_a_batch_is_published_once_by_whichever_driver(installation: Installation) -> None:
    """Two drivers that know nothing of each other bring an attempt each; one of them stands."""
    first, second = installation.attempt("task 1", 0), installation.attempt("task 2", 0)
    installation.committer("driver 1").commit(0, [first])
    installation.committer("driver 2").commit(0, [second])
    found = installation.committer("responder").find(0)
    assert [entry.manifest.kind for entry in found.entries] == [ManifestKind.COMMIT]
    fates = [found.state.fate(each.attempt.attempt_id) for each in (first, second)]
    assert fates == [Fate.COMMIT, Fate.ROLLBACK]
    # Driver 2 does not know that driver 1 has written the COMMITs: it writes them again.
    published, lost = (len(each.attempt.transactions) for each in (first, second))
    assert installation.ops() == 2 * published + lost


def test_an_attempt_that_was_aborted_is_never_published(installation: Installation) -> None:
    """Not by a driver that comes late either."""
    report = installation.attempt("task", 0)
    installation.committer("driver 1").abort(0, [report])
    with pytest.raises(AttemptGivenUpError):
        installation.committer("driver 2").commit(0, [report])


def test_what_a_process_has_is_its_own() -> None:
    """Spark's Python worker has one, for as long as it lives."""
    assert sink_process() is sink_process()
