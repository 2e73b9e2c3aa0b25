"""Drivers and executors as processes of their own: killed, replaced, doubled, on a cluster."""

import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pyspark
import pytest

from halfbridge.java.jvm import JavaNotFoundError, JavaSettings, find_java
from halfbridge.java.locked_jars import JarsError
from halfbridge.serde.records import OpKind
from halfbridge.spark_jobs.session.jars import connector_jars
from halfbridge.spark_jobs.session.local import VECTOR_MODULE
from halfbridge.testkit.children import Child, Children, Interrupts
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.pytest_plugin import leave_out
from tests.kit.caches import jar_settings
from tests.spark.sink_driver import DONE, READY, WRITE_BATCH
from tests.spark.sink_faults import FORMAT, HANG, HANGS
from tests.spark.sink_scene import SinkScene, check_exactly_once, until, value_of

pytestmark = [pytest.mark.spark, pytest.mark.broker]

DRIVER = Path(__file__).with_name("sink_driver.py")
PROCESS_S = 400.0  # JVMs that start on a busy machine
KILLS = 20
BACKLOG = 12  # files that are not committed yet, so that a driver always has work
# A driver is killed when it has committed up to so many batches, and up to so much later.
BATCHES_MAX = 2
LATER_S_MAX = 4.0


@pytest.fixture
def scene(kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> Iterator[SinkScene]:
    """An installation with a running daemon; Spark is started by the tests, in processes."""
    try:
        find_java(JavaSettings.from_environ(os.environ), module=VECTOR_MODULE)
        connector_jars(pyspark.__version__, jar_settings())
    except (JarsError, JavaNotFoundError) as error:
        leave_out(str(error))
    with Children(tmp_path, interrupts=Interrupts(), keep_directory=True) as children:
        scene = SinkScene(kafka_bootstrap_servers, topic_prefix, tmp_path, children).make()
        scene.daemon()
        yield scene


def drive(scene: SinkScene, sink: str = "txn_half", **more: Any) -> Child:
    """Start a driver process; `options` of `more` are the sink's."""
    options = scene.options(**{"check.immunity.ms": "1000", **more.pop("options", {})})
    given = {"rows": str(scene.rows), "format": sink, "options": options, **more}
    return scene.start("driver", str(DRIVER), json.dumps(given))


def said(child: Child, word: str) -> bool:
    """Tell whether a driver has printed a word; fail if it has ended before."""
    if word in child.output.read_text().split():
        return True
    assert child.process.poll() is None, child.last_words()
    return False


def await_query(driver: Child) -> None:
    """Wait until a driver's query runs."""
    until("the query runs", lambda: said(driver, READY), within_s=PROCESS_S)


def finish(driver: Child) -> None:
    """Wait until a driver is done."""
    until("the driver is done", lambda: said(driver, DONE), within_s=PROCESS_S)
    driver.process.wait(PROCESS_S)


@pytest.mark.spark_long
def test_killed_between_manifest_and_decisions(scene: SinkScene) -> None:
    """SIGKILL of the driver: a responder publishes what the manifest lists, in order, once.

    Before, nothing is visible. Started again, the driver says in one line what it found, and goes
    on with the next batch.
    """
    first, second = scene.add_file(200), scene.add_file(100)
    (scene.directory / HANG).touch()
    small = {"transaction.messages.max": "15"}
    driver = drive(scene, FORMAT, faults=str(scene.directory), options=small)
    hangs = scene.directory / HANGS
    until("the commit hangs", lambda: said(driver, READY) and hangs.exists(), within_s=PROCESS_S)
    scene.children.kill(driver)
    assert scene.settled() == []
    assert len(scene.manifests()) == 1
    assert len(scene.undecided()) >= len(first) // 15

    responder = scene.responder()
    until("the responder settles it", lambda: not scene.undecided())
    check_exactly_once(scene.settled(), first)

    (scene.directory / HANG).unlink()
    again = drive(scene, FORMAT, faults=str(scene.directory), options=small)
    finish(again)
    lines = re.findall(r"batch \d+ of .* was published before .*", again.errors.read_text())
    assert len(lines) == 1, lines
    assert f"its {len(first)} rows in " in lines[0]
    check_exactly_once(scene.settled(), first + second)
    assert scene.undecided() == set()
    assert scene.children.stop(responder) == 0


@pytest.mark.spark_long
@pytest.mark.timeout(1_800)
def test_a_killed_driver_of_random_rows(scene: SinkScene) -> None:
    """SIGKILL behind the manifest: run again, the batch has other rows, and fails each time.

    The error names the option by which the first rows stand; with it each row is there once.
    """
    numbers = scene.add_file(60) + scene.add_file(40)
    (scene.directory / HANG).touch()
    more: dict[str, Any] = {"faults": str(scene.directory), "random": True}
    driver = drive(scene, FORMAT, **more)
    hangs = scene.directory / HANGS
    until("the commit hangs", lambda: said(driver, READY) and hangs.exists(), within_s=PROCESS_S)
    scene.children.kill(driver)
    (scene.directory / HANG).unlink()

    driver = drive(scene, **more)
    driver.process.wait(PROCESS_S)
    assert driver.process.returncode != 0
    assert "set the option on.mismatch to keep-first" in driver.errors.read_text()
    first = scene.settled()
    assert sorted(bare(each) for each in first) == [value_of(each) for each in numbers[:60]]

    finish(drive(scene, **more, options={"on.mismatch": "keep-first"}))
    until("nothing is left", lambda: not scene.undecided())
    came = scene.settled()
    assert sorted(bare(each) for each in came) == [value_of(each) for each in numbers]
    assert {each.value for each in first} < {each.value for each in came}


def bare(record: ReadRecord) -> bytes:
    """Return a row's value without what is random in it."""
    return (record.value or b"")[: len(value_of(0))]


@pytest.mark.spark_long
@pytest.mark.timeout(1_800)
def test_executors_as_processes_and_a_task_that_fails_once(scene: SinkScene) -> None:
    """`local-cluster[2,1,1024]`: every row once; what the failed attempts sent is rolled back."""
    numbers = scene.add_file(300) + scene.add_file(100)
    scene.responder()
    driver = drive(scene, master="local-cluster[2,1,1024]", fail_once=True)
    finish(driver)
    check_exactly_once(scene.settled(), numbers)
    until("nothing is left", lambda: not scene.undecided())
    check_exactly_once(scene.settled(), numbers)
    assert OpKind.ROLLBACK in scene.decisions().values(), "no attempt had failed"


def seed_of_run() -> int:
    """Return HALFBRIDGE_FAULTS_SEED, or a fresh seed; pytest shows it on failure."""
    seed = int(os.environ.get("HALFBRIDGE_FAULTS_SEED") or random.SystemRandom().randrange(10**6))
    print(f"HALFBRIDGE_FAULTS_SEED={seed}")
    return seed


@pytest.mark.spark_long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("sink", ["txn_half", WRITE_BATCH])
def test_drivers_killed_at_random_moments(scene: SinkScene, sink: str) -> None:
    """At least 20 SIGKILLs: every row once and in order; nothing stays undecided.

    One task a batch: a driver that was killed between the file source's log and the offsets' leaves
    a batch of two files, and the tasks of a batch have no order among each other.
    """
    choices = random.Random(seed_of_run())
    numbers: list[int] = []
    scene.responder()
    files = kills = at_work = 0
    while kills < KILLS:
        done = committed(scene)
        while files < done + BACKLOG:
            numbers += scene.add_file(40)
            files += 1
        driver = drive(scene, sink, tasks=1, options={"transaction.messages.max": "10"})
        await_query(driver)
        target = done + choices.randint(0, BATCHES_MAX)
        until("batches are committed", lambda n=target: committed(scene) >= n, within_s=PROCESS_S)
        sleep(choices.uniform(0.0, LATER_S_MAX))  # the fault itself: a moment nobody chose
        at_work += not said_or_ended(driver)
        scene.children.kill(driver)
        kills += 1
    finish(drive(scene, sink, tasks=1, options={"transaction.messages.max": "10"}))
    until("nothing is left", lambda: not scene.undecided())
    settled = scene.settled()
    print(scene.story())
    check_exactly_once(settled, numbers)
    assert at_work >= KILLS // 2, "most drivers were done before they were killed"
    kinds = Counter(scene.decisions().values())
    print(f"{kills} kills, {at_work} of them at work, {files} batches, {dict(kinds)}")


def committed(scene: SinkScene) -> int:
    """Return how many batches Spark has noted as done."""
    commits = scene.checkpoint / "commits"
    return sum(path.name.isdigit() for path in commits.iterdir()) if commits.is_dir() else 0


def said_or_ended(driver: Child) -> bool:
    """Tell whether a driver had nothing left to do."""
    return DONE in driver.output.read_text().split() or driver.process.poll() is not None


@pytest.mark.spark_long
@pytest.mark.timeout(3_600)
def test_two_drivers_on_one_checkpoint(scene: SinkScene) -> None:
    """A zombie and its successor: Spark ends one of them at some batch; every row is there once."""
    numbers = [number for _ in range(12) for number in scene.add_file(60)]
    scene.responder()
    drivers = [drive(scene, options={"transaction.messages.max": "20"}) for _ in range(2)]
    for driver in drivers:
        until(
            "a driver has ended", lambda d=driver: d.process.poll() is not None, within_s=PROCESS_S
        )
    ends = [driver.process.returncode for driver in drivers]
    if 0 not in ends:  # they ended each other
        finish(drive(scene))
    until("nothing is left", lambda: not scene.undecided())
    check_exactly_once(scene.settled(), numbers)
    print(f"exit statuses {ends}")


@pytest.mark.spark_long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("sink", ["kafka", "txn_half"])
def test_sparks_own_sink_duplicates_where_this_one_does_not(scene: SinkScene, sink: str) -> None:
    """The control: `commits/1` is lost. Spark's sink writes the batch again, ours does not."""
    first, second = scene.add_file(50), scene.add_file(50)
    options = scene.options()
    if sink == "kafka":
        for ours in ("app.id", "halfbridge.prefix"):
            del options[ours]
    for _ in range(2):
        given = {"rows": str(scene.rows), "format": sink, "options": options}
        finish(scene.start("driver", str(DRIVER), json.dumps(given)))
        came = scene.settled()
        scene.forget_commit(1)
    if sink == "txn_half":
        check_exactly_once(came, first + second)
    else:
        assert len(came) == len(first) + 2 * len(second)
