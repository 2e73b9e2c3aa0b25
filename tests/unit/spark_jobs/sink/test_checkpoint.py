"""What a checkpoint has of a batch, and the error of a driver that runs another plan."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

from halfbridge.kafka.ports import Edge, NewTopic
from halfbridge.serde.manifest import ManifestKind
from halfbridge.spark_jobs.sink.attempt import AttemptReport, write_attempt
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.checkpoint import BatchPlan, DriverAddress, plan_of, read_plan
from halfbridge.spark_jobs.sink.clients import ensure_topics
from halfbridge.spark_jobs.sink.datasource import StreamWriter
from halfbridge.spark_jobs.sink.errors import AttemptGivenUpError
from halfbridge.spark_jobs.sink.manifest import AttemptOutcome
from halfbridge.spark_jobs.sink.options import parse_options
from halfbridge.spark_jobs.sink.process import SinkProcess, sink_process
from halfbridge.testkit.memory.machine import Machine

QUERY = "f117c46c-c849-4aac-860a-537877b2f388"


def write_plan(checkpoint: Path, batch: int, *offsets: str) -> str:
    """Write a plan as Spark does; return its hash."""
    planned = "\n".join(offsets)
    plan = "\n".join(["v1", json.dumps({"batchTimestampMs": batch}), planned])
    (checkpoint / "offsets").mkdir(exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text(plan)
    return sha256(planned.encode()).hexdigest()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    return tmp_path


def plan(location: str, batch: int, query: str = QUERY) -> BatchPlan:
    """Return the plan of a batch as it is read without a driver."""
    return plan_of(query, batch, address=None, location=location)


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_local_checkpoint_is_read_as_files(checkpoint: Path, scheme: str) -> None:
    """Where the driver's JVM cannot be asked; with the batch before, and whether that is done."""
    first, second = (write_plan(checkpoint, batch, '{"at":1}') for batch in range(2))
    assert plan(f"{scheme}{checkpoint}", 0) == BatchPlan(QUERY, first)
    assert plan(f"{scheme}{checkpoint}", 1) == BatchPlan(QUERY, second, first)
    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "0").touch()
    assert plan(f"{scheme}{checkpoint}", 1).is_before_done


@pytest.mark.parametrize(
    ("of_one", "of_other", "is_same"),
    [
        (("v1", "1", '{"at":7}', "-"), ("v1", "2", '{"at":7}', "-"), True),
        (("v1", "1", '{"at":7}', "-"), ("v1", "1", '{"at":8}', "-"), False),
        (("v1", "1", '{"at":7}', "-"), ("v1", "1", '{"at":7}', "3"), False),
    ],
    ids=["another moment", "another range", "another source"],
)
def test_two_drivers_that_plan_the_same_range_have_one_plan(
    checkpoint: Path, of_one: tuple[str, ...], of_other: tuple[str, ...], *, is_same: bool
) -> None:
    """They plan at different moments, and the file of one may replace that of the other."""
    (checkpoint / "offsets").mkdir()
    plans = []
    for lines in (of_one, of_other):
        (checkpoint / "offsets" / "0").write_text("\n".join(lines))
        plans.append(plan(str(checkpoint), 0))
    assert (plans[0] == plans[1]) is is_same
    assert all(each.plan_hash for each in plans)


@pytest.mark.parametrize("damaged", ["", "v1", "v1\n{}"])
def test_a_file_without_offsets_is_no_plan(checkpoint: Path, damaged: str) -> None:
    """It compares with everything: a file that was cut short is not distinguished from a plan."""
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "0").write_text(damaged)
    assert plan(str(checkpoint), 0) == BatchPlan(QUERY)


@pytest.mark.parametrize("location", ["", "s3a://lake/checkpoint", "/nowhere"])
def test_what_cannot_be_read_is_not_known(location: str, caplog: pytest.LogCaptureFixture) -> None:
    """The batch continues with the query's id, and a line is logged."""
    assert plan(location, 1) == BatchPlan(QUERY)
    assert "not distinguished" in caplog.text


def test_a_directory_of_another_query_is_not_read(checkpoint: Path) -> None:
    """The path may be one of a distributed file system, with something else at its place here."""
    write_plan(checkpoint, 0)
    assert plan(str(checkpoint), 0, "another").plan_hash == ""


@pytest.mark.process
def test_a_driver_that_cannot_be_asked_fails_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    """A line is logged; the batch has the plan of the query."""
    nowhere = DriverAddress(1, "secret")
    assert plan_of(QUERY, 0, address=nowhere, location="") == BatchPlan(QUERY)
    assert "cannot be read" in caplog.text
    assert "secret" not in caplog.text


def test_the_drivers_address_does_not_leave_it() -> None:
    """Its holder can run code in the driver: executors get the writer without it."""
    options = parse_options({"kafka.bootstrap.servers": "127.0.0.1:1", "app.id": "app"})
    writer = StreamWriter(options, DriverAddress(1, "secret"))
    assert writer.__getstate__() == {"options": options, "driver": None}


@pytest.mark.parametrize(
    ("starts_at", "ends_at", "departure"),
    [
        (['{"t":{"0":100}}', "-"], ['{"t":{"0":250,"1":7}}', "3"], ""),
        (['{"t": {"0": 100}}', "-"], ['{"t": {"1": 7, "0": 250}}', "3"], ""),
        (['{"t":{"0":100}}', "-"], ['{"t":{"0":200,"1":7}}', "3"], "offsets/7 does not end"),
        (['{"t":{"0":90}}', "-"], ['{"t":{"0":250,"1":7}}', "3"], "offsets/6 does not end"),
        (None, None, ""),
    ],
    ids=["the same", "written otherwise", "ends elsewhere", "begins elsewhere", "not known"],
)
def test_a_plan_that_another_driver_overwrote_is_reported(
    starts_at: list[str] | None, ends_at: list[str] | None, departure: str
) -> None:
    """This driver ran [100, 200); the other has written [100, 250) in its place."""
    files = {
        "offsets/6": b'v1\n{}\n{"t":{"0":100}}\n-',
        "offsets/7": b'v1\n{}\n{"t":{"0":250,"1":7}}\n3',
    }
    plan = read_plan(files.get, QUERY, 7, starts_at=starts_at, ends_at=ends_at)
    assert plan.departure.startswith(departure)
    assert bool(plan.departure) == bool(departure)


# --- the driver and the tasks of the sink, each as a process of its own, on a broker in memory

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
    """Two drivers that know nothing of each other bring an attempt each; one of them is kept."""
    first, second = installation.attempt("task 1", 0), installation.attempt("task 2", 0)
    installation.committer("driver 1").commit(0, [first])
    installation.committer("driver 2").commit(0, [second])
    found = installation.committer("responder").find(0)
    assert [entry.manifest.kind for entry in found.entries] == [ManifestKind.COMMIT]
    fates = [found.state.fate(each.attempt.attempt_id) for each in (first, second)]
    assert fates == [AttemptOutcome.COMMIT, AttemptOutcome.ROLLBACK]
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
