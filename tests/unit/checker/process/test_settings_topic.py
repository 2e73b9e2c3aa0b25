"""The settings record of the daemon's limits: writes by workers, and disagreement."""

import logging
from typing import Any

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.process.settings_topic import SettingsRecord, disagreement, limits_of
from halfbridge.checker.status import Status
from halfbridge.kafka.errors import BridgeError, RetriableError, TopicSetupError
from halfbridge.kafka.ports import Event
from halfbridge.kafka.settings_topic import LimitsRecord
from halfbridge.serde.records import DaemonSettings
from tests.fake_ports import fake_ports

CREATE = "halfbridge topics create"


class Log:
    """A settings topic in memory, which several workers read."""

    def __init__(self) -> None:
        self.said: list[LimitsRecord] = []
        self.failure: BridgeError | None = None
        self._end = 0

    def append(self, settings: DaemonSettings | None, problem: str = "") -> None:
        self.said.append(LimitsRecord(self._end, settings, problem))
        self._end += 1

    def compact(self) -> None:
        """Remove all records but the last, which keeps its offset."""
        del self.said[:-1]

    def make_anew(self) -> None:
        """Delete the topic and create it again."""
        self.said, self._end = [], 0

    def read(self, stop: Event) -> tuple[list[LimitsRecord], int]:
        """Return the records and the end offset."""
        del stop
        if self.failure is not None:
            raise self.failure
        return list(self.said), self._end

    def write(self, settings: DaemonSettings) -> None:
        """Append a record."""
        self.append(settings)

    def workers(self) -> list[str]:
        """Return the workers that wrote the records."""
        return [each.settings.worker for each in self.said if each.settings is not None]


class Worker:
    """One worker, polled step by step."""

    def __init__(self, log: Log, slot: str, **settings: Any) -> None:
        self.status = Status()
        self.mine = limits_of(CheckerConfig(**settings), slot)
        self._record = SettingsRecord(
            self.mine, log, self.status, ports=fake_ports(), create=CREATE
        )

    def poll(self) -> str:
        """Poll once; return the reason that /healthz shows."""
        self._record.poll()
        health = self.status.snapshot()
        disagrees = self.status.metrics.registry.get_sample_value("halfbridge_settings_disagree")
        assert disagrees == (not health.healthy)
        return "" if health.healthy else health.reason


def test_the_first_poll_writes_the_limits() -> None:
    """Only the first poll writes; later polls, and workers with equal limits, do not."""
    log = Log()
    first, second = Worker(log, "w-0"), Worker(log, "w-1")
    for _ in range(3):
        assert (first.poll(), second.poll()) == ("", "")
    (said,) = log.said
    assert said.settings is not None
    further = {"delivery": 1, "topic_gone_ms": 60_000}
    assert said.settings.limits() == {**DaemonSettings().limits(), **further}
    assert (said.settings.worker, said.settings.timestamp > 0) == ("w-0", True)


def test_a_restart_with_other_settings_writes_them() -> None:
    """A worker that starts with other limits writes them without an alarm."""
    log = Log()
    Worker(log, "w-0").poll()
    again = Worker(log, "w-1", check_count_max=5)
    assert [again.poll(), again.poll()] == ["", ""]
    assert log.workers() == ["w-0", "w-1"]
    assert log.said[-1].settings is not None
    assert log.said[-1].settings.check_count_max == 5


def test_workers_that_disagree_both_say_so(caplog: pytest.LogCaptureFixture) -> None:
    """Both report the disagreement in log, health and metric until one is corrected."""
    log = Log()
    here, there = Worker(log, "w-0"), Worker(log, "w-1", transaction_age_ms_max=7_200_000)
    assert (here.poll(), there.poll()) == ("", "")
    for _ in range(2):
        assert "'w-1' runs with other limits: transaction_age_ms_max 7200000" in here.poll()
        assert "transaction_age_ms_max 259200000 (here 7200000)" in there.poll()
    warnings = [each for each in caplog.records if "runs with other limits" in each.message]
    assert len(warnings) == 2, "each is reported once"

    corrected = Worker(log, "w-1")  # restarted with the settings of w-0
    corrected.poll()
    here.poll()  # reads the record that w-1 wrote before its restart
    assert (corrected.poll(), here.poll()) == ("", "")


def test_workers_with_different_modes_both_say_so() -> None:
    """Both workers report the other's delivery mode by its setting's name."""
    log = Log()
    here, there = Worker(log, "w-0"), Worker(log, "w-1", delivery="at-least-once")
    assert (here.poll(), there.poll()) == ("", "")
    assert "'w-1' runs with other limits: delivery at-least-once (here exactly-once)" in here.poll()
    assert "delivery exactly-once (here at-least-once)" in there.poll()


def test_a_mode_that_is_not_known_is_reported_unchanged() -> None:
    """An unknown mode is reported by its number."""
    said = LimitsRecord(0, DaemonSettings(worker="w-1", further={"delivery": 3}))
    mine = limits_of(CheckerConfig(), "w-0")
    assert "delivery 3 (here exactly-once)" in disagreement(mine, [said])


def test_a_third_worker_sees_both_sides() -> None:
    """A third worker reports the disagreement although the last record has its own limits."""
    log = Log()
    here, there = Worker(log, "w-0"), Worker(log, "w-1", check_count_max=5)
    third = Worker(log, "w-2")
    for worker in (here, third, there, here):
        worker.poll()
    assert log.workers() == ["w-0", "w-1", "w-0"]
    assert "'w-1' runs with other limits: check_count_max 5 (here 15)" in third.poll()


def test_the_record_of_a_worker_that_is_gone_is_replaced() -> None:
    """The disagreement is reported by one poll; the record is then replaced."""
    log = Log()
    stays = Worker(log, "w-0")
    stays.poll()
    Worker(log, "w-1", check_count_max=5).poll()
    assert "check_count_max 5" in stays.poll()
    assert stays.poll() == ""
    assert log.workers() == ["w-0", "w-1", "w-0"]


def test_a_topic_that_was_made_anew_gets_the_record_again() -> None:
    """After the topic is deleted and created again, all its records are read and written again."""
    log = Log()
    worker = Worker(log, "w-0")
    worker.poll()
    log.make_anew()
    worker.poll()
    assert log.workers() == ["w-0"]
    log.append(None)
    log.append(None)
    worker.poll()
    log.make_anew()
    Worker(log, "w-1", check_count_max=5).poll()
    assert "'w-1' runs with other limits" in worker.poll()


def test_compaction_hides_no_disagreement() -> None:
    """If compaction leaves one record, both workers still report the disagreement."""
    log = Log()
    here, there = Worker(log, "w-0"), Worker(log, "w-1", check_count_max=5)
    for worker in (here, there, here, there):
        worker.poll()
        log.compact()
    assert here.poll()
    log.compact()
    assert there.poll()


@pytest.mark.parametrize("problem", ["", "DaemonSettings: unknown schema fingerprint 00"])
def test_what_cannot_be_read_is_written_again(
    problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A deleted or unreadable record is written again; only an unreadable one is logged, once."""
    log = Log()
    worker = Worker(log, "w-0")
    worker.poll()
    log.append(None, problem)
    for _ in range(3):
        assert worker.poll() == ""
    assert log.workers() == ["w-0", "w-0"]
    assert sum("cannot be read" in each.message for each in caplog.records) == bool(problem)


def test_limits_that_this_version_does_not_know_are_left_alone() -> None:
    """A newer worker's record with an additional limit is neither reported nor replaced."""
    log = Log()
    older = Worker(log, "w-0")
    older.poll()
    log.append(older.mine._replace(worker="w-1", further={**older.mine.further, "answers_max": 7}))
    assert (older.poll(), older.poll()) == ("", "")
    assert log.workers() == ["w-0", "w-1"]


@pytest.mark.parametrize(
    ("failure", "reported"),
    [
        (TopicSetupError("topic cannot be read"), f"Run: {CREATE}"),
        (RetriableError("no broker"), "no broker"),
    ],
)
def test_without_the_topic_the_worker_continues(
    failure: BridgeError, reported: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged once, health stays good, and the record is written once possible."""
    log = Log()
    log.failure = failure
    worker = Worker(log, "w-0")
    with caplog.at_level(logging.INFO):
        assert [worker.poll(), worker.poll()] == ["", ""]
    assert [reported in each.message for each in caplog.records] == [True]
    log.failure = None
    worker.poll()
    assert log.workers() == ["w-0"]


def test_a_poll_that_fails_leaves_the_alarm() -> None:
    """A failed poll keeps the alarm about the disagreement."""
    log = Log()
    here, there = Worker(log, "w-0"), Worker(log, "w-1", check_count_max=5)
    here.poll()
    there.poll()
    assert here.poll()
    log.failure = RetriableError("no broker")
    assert here.poll()


def test_a_forged_name_is_cut() -> None:
    """A forged worker name is cut and has no line breaks in the log."""
    mine = DaemonSettings(worker="w-0")
    forged = mine._replace(worker="\n" * 5_000, check_count_max=5)
    text = disagreement(mine, [LimitsRecord(0, forged)])
    assert "\n" not in text
    assert len(text) < 600
