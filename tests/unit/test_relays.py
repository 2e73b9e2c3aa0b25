"""What every relay does: pauses after failures, health, other work, and its end."""

import logging
from collections.abc import Callable, Iterator, Mapping
from threading import Event, Thread

import pytest

from halfbridge.kafka.errors import BridgeError, FatalError, RetriableError
from halfbridge.relays import DrainError, RelayRunner, ServiceMetrics
from tests.kit.waiting import until

WAIT_S_MAX = 30.0


class Runner(RelayRunner):
    """Does what it is given, one call a round; after the last call it waits for `stop`."""

    def __init__(
        self,
        *calls: Callable[[], None],
        other: Callable[[], None] | None = None,
        round_s_max: float = WAIT_S_MAX,
    ) -> None:
        super().__init__(
            ServiceMetrics(),
            logging.getLogger("halfbridge.sql"),
            retried=(BridgeError,),
            fatal=(FatalError,),
            round_s_max=round_s_max,
        )
        self._calls = [*calls]
        self._other = other
        self.closed = 0

    def _work(self) -> None:
        if not self._calls:
            self._stopping.wait()
            return
        self._calls.pop(0)()
        self.succeeded()

    def _close(self) -> None:
        self.closed += 1

    def _other_work(self) -> Mapping[str, Callable[[], None]]:
        return {} if self._other is None else {"other work": self._other}

    def _last_step(self) -> str:
        return "SENT"


def ok() -> None:
    """Succeed."""


def raising(error: Exception) -> Callable[[], None]:
    """Return a call that raises."""

    def call() -> None:
        raise error

    return call


@pytest.fixture
def started() -> Iterator[Callable[[Runner], Runner]]:
    """Return a function that starts a runner; all are stopped at the end."""
    threads: list[tuple[Runner, Thread]] = []

    def start(runner: Runner) -> Runner:
        threads.append((runner, Thread(target=runner.run)))
        threads[-1][1].start()
        return runner

    yield start
    for runner, thread in threads:
        runner.stop()
        thread.join(WAIT_S_MAX)
        assert not thread.is_alive()
        assert runner.closed == 1


def test_a_failure_is_in_health_until_a_success(
    started: Callable[[Runner], Runner], caplog: pytest.LogCaptureFixture
) -> None:
    """The same error is one warning however often it comes; another one is another warning."""
    may_succeed = Event()
    failures = [raising(RetriableError(text)) for text in ("no\nbroker", "no\nbroker", "no topic")]
    runner = Runner(*failures, lambda: may_succeed.wait(WAIT_S_MAX) and None)
    assert (runner.health().ready, runner.health().reason) == (False, "starting")
    with caplog.at_level(logging.WARNING, logger="halfbridge.sql"):
        started(runner)
        until("it fails", lambda: "no topic" in runner.health().reason, within_s=WAIT_S_MAX)
    assert not runner.health().healthy
    assert [each.getMessage() for each in caplog.records] == [
        "relay failed; trying again: no broker",
        "relay failed; trying again: no topic",
    ]
    may_succeed.set()
    until("it works", lambda: runner.health().ready, within_s=WAIT_S_MAX)
    assert (runner.health().healthy, runner.health().reason) == (True, "")
    labels = {"what": "relay"}
    assert runner.metrics.registry.get_sample_value("halfbridge_relay_troubles_total", labels) == 3


@pytest.mark.parametrize("error", [FatalError("fenced"), RuntimeError("unexpected")])
def test_errors_that_a_retry_cannot_mend_end_the_run(error: Exception) -> None:
    """They are raised by `run`, after the relay has released what it holds."""
    runner = Runner(ok, raising(error))
    with pytest.raises(type(error), match=str(error)):
        runner.run()
    assert runner.closed == 1


def test_health_names_the_last_step_of_work_that_hangs(started: Callable[[Runner], Runner]) -> None:
    """After the longest time without a success; healthy again after the next success."""
    may_go_on = Event()
    runner = Runner(lambda: may_go_on.wait(WAIT_S_MAX) and None, round_s_max=0.1)
    started(runner)
    until("it hangs", lambda: not runner.health().healthy, within_s=WAIT_S_MAX)
    assert runner.health().reason == "rounds: no success for 0 s; last step: SENT"
    may_go_on.set()
    until("it works", lambda: runner.health().ready, within_s=WAIT_S_MAX)


def test_other_work_survives_its_failures(started: Callable[[Runner], Runner]) -> None:
    """A failure is in health under the name of the part, until the part works again."""
    may_recover = Event()

    def other() -> None:
        with runner.surviving("other work"):
            raise ValueError
        may_recover.wait(WAIT_S_MAX)
        with runner.surviving("other work"):
            pass

    runner = Runner(ok, other=other)
    started(runner)
    until("it fails", lambda: not runner.health().healthy, within_s=WAIT_S_MAX)
    assert runner.health().reason == "other work: ValueError"
    may_recover.set()
    until("it recovers", lambda: runner.health().healthy, within_s=WAIT_S_MAX)


@pytest.mark.parametrize(
    ("hangs_in_rounds", "text"),
    [
        (True, "rounds did not end in 0.1 s; last step: SENT"),
        (False, "other work did not end in 0.1 s"),
    ],
)
def test_stop_waits_only_so_long_for_work_that_hangs(*, hangs_in_rounds: bool, text: str) -> None:
    """`run` raises an error that names it, and the last step if rounds hang."""
    hangs, may_end = Event(), Event()

    def hang() -> None:
        hangs.set()
        may_end.wait(WAIT_S_MAX)

    runner = Runner(hang) if hangs_in_rounds else Runner(other=hang)

    def stop() -> None:
        hangs.wait(WAIT_S_MAX)
        runner.stop()

    thread = Thread(target=stop)
    thread.start()
    try:
        with pytest.raises(DrainError) as raised:
            runner.run(drain_s=0.1)
    finally:
        may_end.set()
        thread.join(WAIT_S_MAX)
    assert str(raised.value) == text
    part, step = ("rounds", "SENT") if hangs_in_rounds else ("other work", "")
    assert (raised.value.unfinished, raised.value.drain_s, raised.value.step) == (
        (part,),
        0.1,
        step,
    )
