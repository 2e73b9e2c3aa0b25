"""What Spark does with the sink: a driver runs batches, and has executors run tasks.

Spark itself is written down here in short: plans that are written before a batch is run, tasks that
are tried again or run twice, `abort` after a commit that failed. All that is sent to brokers is
said by the shipped sink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from halfbridge.spark_jobs.sink.attempt import write_attempt
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.checkpoint import read_plan
from halfbridge.spark_jobs.sink.clients import check_age, ensure_topics
from halfbridge.spark_jobs.sink.errors import (
    BatchOrderError,
    PlanMismatchError,
    RefusedError,
    ReplayMismatchError,
    RowError,
    SinkError,
    SinkOptionError,
    UnknownPastError,
)
from halfbridge.spark_jobs.sink.process import SinkProcess
from tests.simulation.feed_files import KEYS, QUERY_ID, Row, rows_of_plan
from tests.simulation.settings import BrokenPromiseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfbridge.spark_jobs.sink.attempt import AttemptReport
    from tests.simulation.feed import Feed

# spark.task.maxFailures is 4.
TRIES_MAX = 4
# Rows of a batch.
ROWS = (3, 1, 2, 5, 8, 0)
TASKS = (1, 2, 2)
# How long a driver waits before it plans a batch; where the store is lax, before it writes a plan.
TRIGGERS_S = (0.0, 0.1, 0.3)
# What a driver may have at a time, so that a run stays short.
EXECUTORS_MAX = 4
# Rows of one Arrow batch, so that a task sends while its next rows are not there yet.
ARROW_ROWS = 2
# What no query of a run gives any reason for. Each start would fail with it again.
_NEVER = (
    *(BatchOrderError, PlanMismatchError, RefusedError, ReplayMismatchError),
    *(RowError, SinkOptionError, UnknownPastError),
)


class QueryFailedError(Exception):
    """The query ends, for a reason that the sink has no part in."""


class RowsError(Exception):
    """The query's own code failed in a task."""


class Attempt:
    """One run of a task.

    Attributes:
        report: What it reported; None so far, or for good.
        is_ended: Nothing more comes.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.report: AttemptReport | None = None
        self.is_ended = False

    @property
    def is_over(self) -> bool:
        """Whether the driver need not wait any more."""
        return self.is_ended or self._executor.process.is_dead


class Executor:
    """A Python worker of an executor; runs one task at a time, and is used again."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        name = f"executor-{feed.world.next_number()}"
        self.process, self.ports = feed.world.new_process(name)
        self._sink = SinkProcess(self.ports)
        self.is_busy = False

    def start(self, batch: int, rows: Sequence[Row]) -> Attempt:
        """Begin to run a task."""
        self.is_busy = True
        attempt = Attempt(self)
        self.ports.run.start(lambda: self._run(attempt, batch, rows), f"task of batch {batch}")
        return attempt

    def _run(self, attempt: Attempt, batch: int, rows: Sequence[Row]) -> None:
        feed = self._feed
        try:
            attempt.report = write_attempt(
                feed.options, batch, self._arrow(rows), query_id=QUERY_ID, process=self._sink
            )
        except (SinkError, RowsError) as error:
            feed.world.note(self.process.name, "task fails:", type(error).__name__)
        attempt.is_ended = True
        self.is_busy = False

    def _arrow(self, rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
        feed = self._feed
        for at in range(0, len(rows), ARROW_ROWS):
            if feed.world.choices.fault(feed.world.rate):
                raise RowsError
            part = rows[at : at + ARROW_ROWS]
            yield pa.record_batch(
                [
                    pa.array([row.topic for row in part], pa.string()),
                    pa.array([row.key for row in part], pa.binary()),
                    pa.array([feed.value_of(row) for row in part], pa.binary()),
                ],
                names=["topic", "key", "value"],
            )


class Task:
    """The rows of one task, and what the driver has of it."""

    def __init__(self, batch: int, rows: Sequence[Row]) -> None:
        self.batch = batch
        self.rows = rows
        self.report: AttemptReport | None = None
        self.is_over = False


class Driver:
    """One run of the query, from its start to its end.

    Attributes:
        process: What dies with it; executors do not.
        executors: Its executors, dead ones too.
        paused_until_ms: It is paused until then.
        is_idle: It waits for new rows.
        error: Why the query failed; None: it has not.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._world = feed.world
        self.process, self._ports = feed.world.new_process(f"driver-{feed.world.next_number()}")
        self._sink = SinkProcess(self._ports)
        self.executors: list[Executor] = []
        self.paused_until_ms = 0
        self.is_idle = False
        self.error: Exception | None = None
        self._last: int | None = None
        self._end = 0
        self._ports.run.start(self._run, "query")

    @property
    def has_ended(self) -> bool:
        """Whether the query failed, or its process died."""
        return self.error is not None or self.process.is_dead

    def _run(self) -> None:
        try:
            ensure_topics(self._feed.options, self._ports)
            check_age(self._feed.options, self._ports)
            while True:
                self._run_batch(*self._next())
        except (SinkError, QueryFailedError) as error:
            self._world.note(self.process.name, "fails:", type(error).__name__, str(error)[:60])
            self.error = error
            if isinstance(error, _NEVER) and not self._feed.is_of_a_replaced_plan(error):
                raise BrokenPromiseError(f"the query fails for good: {error}") from error

    # --- which batch ---------------------------------------------------------------------------

    def _next(self) -> tuple[int, int, int]:
        """Return the next batch, and the source's offsets at which it begins and ends."""
        files = self._feed.files
        if self._last is None:
            newest = files.newest
            if newest >= 0 and not files.exists(f"commits/{newest}"):
                return newest, files.end_of(newest - 1), files.end_of(newest)
            self._last, self._end = newest, files.end_of(newest)
        batch, begin = self._last + 1, self._end
        self.is_idle = True
        self._wait_until(self._feed.has_rows)
        self.is_idle = False
        choices = self._world.choices
        self._ports.run.pause(TRIGGERS_S[choices.below(len(TRIGGERS_S))])
        end = begin + ROWS[choices.below(len(ROWS))]
        is_planned = files.exists(f"offsets/{batch}")
        if self._feed.is_lax:  # another driver may write its plan between the two
            self._ports.run.pause(TRIGGERS_S[choices.below(len(TRIGGERS_S))])
        if is_planned:
            raise QueryFailedError(f"another driver has planned batch {batch}")
        files.write_plan(batch, end, self._world.now_ms)
        self._world.note(self.process.name, "plans batch", batch, begin, end)
        return batch, begin, end

    def _run_batch(self, batch: int, begin: int, end: int) -> None:
        feed = self._feed
        reports, is_whole = self._reports(batch, rows_of_plan(begin, end))
        committer = BatchCommitter(feed.options, self._sink)
        if not is_whole:
            self._abort(committer, batch, reports)
            raise QueryFailedError("a task failed too often")
        plan = read_plan(
            feed.files.read, QUERY_ID, batch, starts_at=[str(begin)], ends_at=[str(end)]
        )
        try:
            committer.commit(batch, reports, plan)
        except SinkError:
            self._abort(committer, batch, reports)
            raise
        self._world.note(self.process.name, "has committed batch", batch)
        if feed.files.exists(f"commits/{batch}"):
            raise QueryFailedError(f"another driver has committed batch {batch}")
        feed.files.write(f"commits/{batch}", b"v1\n{}")
        feed.committed(batch)
        self._last, self._end = batch, end
        if self._world.choices.below(4) == 1:  # Spark ends Python workers that were idle
            self._sink = SinkProcess(self._ports)

    def _abort(self, committer: BatchCommitter, batch: int, reports: list[AttemptReport]) -> None:
        """As Spark does after any failure; what the abort raises is only logged."""
        try:
            committer.abort(batch, reports)
        except SinkError as error:
            self._world.note(self.process.name, "abort fails:", type(error).__name__)

    # --- tasks ---------------------------------------------------------------------------------

    def _reports(self, batch: int, rows: Sequence[Row]) -> tuple[list[AttemptReport], bool]:
        """Run all tasks; return the reports, and whether no task failed."""
        choices = self._world.choices
        count = TASKS[choices.below(len(TASKS))]
        parts: list[list[Row]] = [[] for _ in range(count)]
        for row in rows:  # rows of one key in one task, so that they have an order
            parts[KEYS.index(row.key) % count].append(row)
        tasks = [Task(batch, part) for part in parts]
        for task in tasks:
            self._ports.run.start(lambda task=task: self._run_task(task), "task")
        self._wait_until(lambda: all(task.is_over for task in tasks))
        reports = [task.report for task in tasks if task.report is not None]
        return reports, len(reports) == len(tasks)

    def _run_task(self, task: Task) -> None:
        """Run a task until one attempt reports."""
        choices, rate = self._world.choices, self._world.rate
        for _ in range(TRIES_MAX):
            attempts = [self._attempt(task)]
            if rate and choices.below(5) == 1:  # speculation
                attempts.append(self._attempt(task))
            if choices.fault(rate):  # the executor is lost to the driver, and continues
                continue
            self._wait_until(
                lambda attempts=attempts: (
                    any(each.report for each in attempts) or all(each.is_over for each in attempts)
                )
            )
            task.report = next((each.report for each in attempts if each.report), None)
            if task.report is not None:
                break
        task.is_over = True

    def _attempt(self, task: Task) -> Attempt:
        self._wait_until(lambda: self._free() is not None)
        executor = self._free()
        assert executor is not None
        return executor.start(task.batch, task.rows)

    def _free(self) -> Executor | None:
        """Return an executor that is idle, or a new one if there is room."""
        alive = [each for each in self.executors if not each.process.is_dead]
        for executor in alive:
            if not executor.is_busy:
                return executor
        if len(alive) >= EXECUTORS_MAX:
            return None
        self.executors = [*alive, Executor(self._feed)]
        return self.executors[-1]

    def _wait_until(self, ready: object) -> None:
        self._world.scheduler.wait(self.process, ready)
