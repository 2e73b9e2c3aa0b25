"""Asynchronous producers on the stack in memory: sends, checks, deaths and time."""

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from halfbridge import (
    AsyncTransaction,
    AsyncTransactionProducer,
    ForkedProcessError,
    Message,
    MessageView,
    NoAnswerError,
    OtherLoopError,
    OutcomeUnknownError,
    ProducerClosedError,
    Resolution,
    State,
)
from halfbridge.sql import AsyncFence
from halfbridge.testkit.memory import MemoryStack, Step, every_crash
from halfbridge.testkit.memory.crash import CrashNotReachedError
from halfbridge.testkit.memory.programs import MemoryAsyncProducer
from halfbridge.testkit.memory.writer import MemoryWriter
from tests.unit.testkit.memory.shop import come_back, go_away

TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


@contextmanager
def suppress_and_note(reported: list[Any]) -> Iterator[None]:
    """Swallow a cancellation."""
    try:
        yield
    except asyncio.CancelledError:
        reported.append("cancelled")


async def rolls_back(_view: MessageView) -> Resolution:
    return Resolution.ROLLBACK


async def commits(_view: MessageView) -> Resolution:
    return Resolution.COMMIT


def message(number: int = 0) -> Message:
    return Message("orders", key=b"%d" % number, value=b"%d" % number)


@pytest.fixture
def stack(halfbridge_memory: MemoryStack) -> MemoryStack:
    """Return a stack with a real topic."""
    halfbridge_memory.create_topic("orders")
    return halfbridge_memory


def values(stack: MemoryStack, count: int = 0) -> list[bytes | None]:
    return sorted((each.value or b"") for each in stack.read_committed("orders", count=count))


async def until(is_so: Callable[[], object]) -> None:
    """Let virtual time pass until something is so."""
    while not is_so():  # noqa: ASYNC110  (nothing tells)
        await asyncio.sleep(0.2)


def readers(producer: MemoryAsyncProducer) -> list[Any]:
    """Return the Kafka clients that are open; writers in memory are dropped and never closed."""
    return [each for each in producer.process.clients if not isinstance(each, MemoryWriter)]


def test_blocks_commit_and_explicit_decisions_count(stack: MemoryStack) -> None:
    """A block commits at its end; a rollback is delivered nowhere; `wait` returns a place."""

    async def main() -> None:
        async with stack.async_producer("g", checker=rolls_back) as producer:
            async with producer.begin() as tx:
                receipt = await tx.send(message(1))
                assert (receipt.transaction_id, tx.message_count) == (tx.id, 1)
            decided = await tx.decided()
            assert decided is not None
            assert decided.resolution is Resolution.COMMIT
            async with producer.begin() as other:
                await other.send_all([message(2), message(3)])
                back = await other.rollback(wait=True)
            assert (back is not None, other.state) == (True, State.ROLLED_BACK)
            explicit = producer.begin()
            await explicit.send(message(4))
            assert await explicit.commit() is None
            assert await producer.flush() == 0
            assert producer.failed_decisions == 0

    stack.run(main())
    assert values(stack, 2) == [b"1", b"4"]


def test_many_tasks_share_batches_and_the_limit_of_records(stack: MemoryStack) -> None:
    """Back-pressure awaits: all get through, though only four records may be unacknowledged."""

    async def main() -> None:
        async with stack.async_producer("g", checker=rolls_back, in_flight_max=4) as producer:

            async def one(number: int) -> None:
                async with producer.begin() as tx:
                    await tx.send(message(number))

            await asyncio.gather(*(one(number) for number in range(10, 60)))

    stack.run(main())
    assert values(stack, 50) == [b"%d" % number for number in range(10, 60)]


def test_a_check_is_a_task_of_the_loop_with_a_copied_context(stack: MemoryStack) -> None:
    """It sees the variables of the code that started the producer, and changes only its own."""
    seen = []

    async def check(_view: MessageView) -> Resolution:
        seen.append((TENANT.get(), asyncio.get_running_loop()))
        TENANT.set("changed")
        await asyncio.sleep(1)
        return Resolution.COMMIT

    async def main() -> asyncio.AbstractEventLoop:
        TENANT.set("shop")
        async with stack.async_producer("g", checker=check) as producer:
            for number in range(2):
                await producer.begin().send(message(number))
            await until(lambda: len(seen) >= 2)
            await asyncio.sleep(5)
            assert producer.check_counts().answered == 2
        return asyncio.get_running_loop()

    loop = stack.run(main())
    assert seen == [("shop", loop)] * 2
    assert values(stack, 2) == [b"0", b"1"]


def test_no_more_checks_run_at_a_time_than_check_threads(stack: MemoryStack) -> None:
    """The others wait for their turn; all are answered."""
    running, most = set(), 0

    async def check(view: MessageView) -> Resolution:
        nonlocal most
        running.add(view.transaction_id)
        most = max(most, len(running))
        await asyncio.sleep(0.5)
        running.discard(view.transaction_id)
        return Resolution.COMMIT

    async def main() -> None:
        async with stack.async_producer("g", checker=check, check_threads=2) as producer:
            for number in range(10, 17):
                await producer.begin().send(message(number))
            await until(lambda: producer.check_counts().answered >= 7)

    stack.run(main())
    assert most == 2
    assert len(values(stack, 7)) == 7


def test_a_check_that_is_out_of_time_is_cancelled_and_asked_again(stack: MemoryStack) -> None:
    """It counts as failed and timed out, and hangs no longer; the next answer decides."""
    cancelled = []

    async def check(view: MessageView) -> Resolution:
        if not cancelled:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(view.transaction_id)
        return Resolution.COMMIT

    async def main() -> None:
        async with stack.async_producer("g", checker=check, check_timeout_ms=1000) as producer:
            tx = producer.begin()
            await tx.send(message())
            await until(lambda: producer.check_counts().answered)
            counts = producer.check_counts()
            assert (cancelled, counts.failed, counts.timed_out, counts.hung) == ([tx.id], 1, 1, 0)

    stack.run(main())
    assert values(stack, 1) == [b"0"]


def test_a_check_that_ignores_its_cancellation_hangs_until_it_ends(stack: MemoryStack) -> None:
    """It is reported, `on_hung` is called on the loop, and the late answer counts."""
    reported: list[Any] = []
    free: list[bool] = []

    async def check(_view: MessageView) -> Resolution:
        while not free:
            with suppress_and_note(reported):
                await asyncio.sleep(1)
        return Resolution.COMMIT

    async def main() -> None:
        def hung(counts: object) -> None:
            reported.append((counts.hung, asyncio.get_running_loop()))

        async with stack.async_producer(
            "g", checker=check, check_timeout_ms=1000, check_threads=1, on_hung=hung
        ) as producer:
            await producer.begin().send(message())
            await until(lambda: len(reported) >= 2)
            assert reported == ["cancelled", (1, asyncio.get_running_loop())]
            free.append(True)
            await until(lambda: producer.check_counts().answered)
            assert producer.check_counts().hung == 0

    stack.run(main())
    assert values(stack, 1) == [b"0"]


def test_a_check_that_raises_decides_nothing(stack: MemoryStack) -> None:
    """As with blocking checkers: the daemon asks again."""
    asked = []

    async def check(_view: MessageView) -> Resolution:
        asked.append(True)
        if len(asked) < 3:
            raise NoAnswerError("the database is away")
        return Resolution.ROLLBACK

    async def main() -> None:
        async with stack.async_producer("g", checker=check) as producer:
            await producer.begin().send(message())
            await until(lambda: producer.check_counts().answered)
            assert producer.check_counts().failed == 2

    stack.run(main())
    stack.wait_until_decided()
    assert values(stack) == []


def test_an_exception_decides_nothing_but_where_it_proves_a_rollback(stack: MemoryStack) -> None:
    """`rollback_on` names it; every other one leaves the transaction to a check."""
    states: list[AsyncTransaction] = []

    class NotAcceptedError(Exception):
        pass

    async def main() -> None:
        async with stack.async_producer("g", checker=commits) as producer:

            async def block(number: int, error: type[Exception]) -> None:
                async with producer.begin(rollback_on=NotAcceptedError) as tx:
                    states.append(tx)
                    await tx.send(message(number))
                    raise error

            with pytest.raises(NotAcceptedError):
                await block(1, NotAcceptedError)
            with pytest.raises(KeyError):
                await block(2, KeyError)
            assert states[0].state in {State.ROLLBACK_SENT, State.ROLLED_BACK}
            assert states[1].state is State.HALF_SENT
            await asyncio.sleep(15)

    stack.run(main())
    assert values(stack, 1) == [b"2"]


def test_a_cancelled_block_decides_nothing(stack: MemoryStack) -> None:
    """The local transaction may have committed: a check asks."""

    async def main() -> None:
        sent = asyncio.Event()
        async with stack.async_producer("g", checker=commits) as producer:
            tx = producer.begin()

            async def block() -> None:
                async with tx:
                    await tx.send(message(7))
                    sent.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(block())
            await sent.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert tx.state is State.HALF_SENT
            await asyncio.sleep(15)

    stack.run(main())
    assert values(stack, 1) == [b"7"]


def test_a_loop_that_closes_with_open_transactions_leaves_them_to_others(
    stack: MemoryStack,
) -> None:
    """The producer leaves its group, so that another member answers; a new loop is refused."""
    producer = stack.async_producer("g", checker=rolls_back)

    async def begin() -> None:
        await producer.start()
        await producer.begin().send(message(1))
        async with producer.begin() as tx:
            await tx.send(message(2))

    async def use() -> None:
        for call in (producer.begin, producer.start, producer.close):
            with pytest.raises(OtherLoopError, match="make a producer in each loop"):
                await call()

    stack.run(begin())
    stack.run(use())
    with pytest.raises(OtherLoopError):
        producer.begin()

    async def answer() -> None:
        async with stack.async_producer("g", checker=commits) as successor:
            await until(lambda: successor.check_counts().answered)

    stack.run(answer())
    assert values(stack, 2) == [b"1", b"2"]


def test_a_producer_that_is_closed_or_not_started_says_so(stack: MemoryStack) -> None:
    """Closing twice is allowed, as closing before a start."""

    async def main() -> None:
        producer: AsyncTransactionProducer = stack.async_producer("g", checker=commits)
        with pytest.raises(ProducerClosedError, match="async with"):
            producer.begin()
        await producer.close()
        async with producer:
            tx = producer.begin()
        with pytest.raises(ProducerClosedError, match="closed"):
            producer.begin()
        with pytest.raises(ProducerClosedError, match="closed"):
            await tx.send(message())
        await producer.close()

    stack.run(main())


def test_commit_of_another_process_is_repeated(stack: MemoryStack) -> None:
    """By the numbers of its receipts, as with the blocking producer."""

    async def main() -> None:
        async with stack.async_producer("g", checker=rolls_back) as producer:
            tx = producer.begin()
            receipt = await tx.send(message(5))
            decided = await producer.repeat_commit(
                tx.id,
                half_partition=receipt.half_partition,
                half_offset=receipt.half_offset,
                message_count=1,
            )
            assert decided.resolution is Resolution.COMMIT

    stack.run(main())
    assert values(stack, 1) == [b"5"]


def test_a_lost_leader_ends_every_wait_in_time(stack: MemoryStack) -> None:
    """An unknown outcome after decision_timeout_ms; the loop runs meanwhile."""
    ticks = []

    async def main() -> None:
        async with stack.async_producer(
            "g", checker=commits, decision_timeout_ms=2_000, send_timeout_ms=2_000
        ) as producer:
            tx = producer.begin()
            receipt = await tx.send(message(1))
            place = stack.config.names.op, receipt.half_partition
            stack.machine.broker.go_away(place, is_leaderless=False)
            waiting = asyncio.create_task(tx.commit(wait=True))
            while not waiting.done():
                ticks.append(True)
                await asyncio.sleep(0.1)
            with pytest.raises(OutcomeUnknownError):
                await waiting
            assert tx.state is State.COMMIT_IN_DOUBT
            stack.machine.broker.come_back(place)
            await tx.commit(wait=True)

    stack.run(main())
    assert len(ticks) > 10
    assert values(stack, 1) == [b"1"]


def test_a_cancelled_send_without_an_acknowledgement_is_rolled_back(stack: MemoryStack) -> None:
    """The broker is asked for the end of the half partition, beside the loop."""

    async def main() -> None:
        async with stack.async_producer("g", checker=commits, send_timeout_ms=1_000) as producer:
            go_away(stack, stack.config.names.half)
            tx = producer.begin()
            sending = asyncio.create_task(tx.send(message(1)))
            await asyncio.sleep(0.5)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            come_back(stack, stack.config.names.half)
            back = await tx.rollback(wait=True)
            assert back is not None
            assert back.resolution is Resolution.ROLLBACK

    stack.run(main())
    stack.wait_until_decided()
    assert values(stack) == []


def test_cancelled_in_start_what_began_is_closed(stack: MemoryStack) -> None:
    """No thread and no Kafka client is left behind."""

    async def main() -> None:
        producer = stack.async_producer("g", checker=commits)
        starting = asyncio.create_task(producer.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.sleep(30)
        assert readers(producer) == []
        with pytest.raises(ProducerClosedError, match="not started"):
            producer.begin()

    stack.run(main())


def test_close_continues_after_a_cancellation(stack: MemoryStack) -> None:
    """What was sent is stored, and the clients are closed."""

    async def main() -> None:
        producer = stack.async_producer("g", checker=rolls_back)
        await producer.start()
        async with producer.begin() as tx:
            await tx.send(message(1))
        assert readers(producer)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await asyncio.sleep(30)
        assert readers(producer) == []

    stack.run(main())
    assert values(stack, 1) == [b"1"]


def test_cancelled_in_decided_and_flush_the_same_calls_may_be_made_again(
    stack: MemoryStack,
) -> None:
    """The decision is stored once a broker answers again."""

    async def main() -> None:
        async with stack.async_producer("g", checker=rolls_back) as producer:
            for number, is_flush in enumerate((False, True)):
                async with producer.begin() as tx:
                    await tx.send(message(number))
                    go_away(stack, stack.config.names.op)
                waiting = asyncio.create_task(producer.flush() if is_flush else tx.decided())
                await asyncio.sleep(0.5)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                come_back(stack, stack.config.names.op)
                decided = await tx.decided()
                assert decided is not None
                assert decided.resolution is Resolution.COMMIT
                assert await producer.flush() == 0
            assert producer.failed_decisions == 0

    stack.run(main())
    assert values(stack, 2) == [b"0", b"1"]


def test_a_copy_in_a_forked_process_is_refused(stack: MemoryStack) -> None:
    """In any loop, before any other error."""
    producer = stack.async_producer("g", checker=commits)

    async def begin() -> None:
        await producer.start()
        producer._client.shared.forked()
        with pytest.raises(ForkedProcessError, match="in the child"):
            producer.begin()

    async def use() -> None:
        with pytest.raises(ForkedProcessError, match="in the child"):
            producer.begin()
        await producer.close()

    stack.run(begin())
    stack.run(use())


@pytest.mark.parametrize("step", [None, *Step])
def test_a_client_dies_at_each_step(stack: MemoryStack, step: Step | None) -> None:
    """What its database says decides; the asynchronous checker of its successor answers."""
    rows: set[str] = set()

    async def check(view: MessageView) -> Resolution:
        await asyncio.sleep(0)
        return Resolution.COMMIT if view.transaction_id in rows else Resolution.ROLLBACK

    async def main() -> None:
        async with stack.async_producer("g", checker=check) as producer, producer.begin() as tx:
            await tx.send(message(9))
            stack.mark(Step.BEFORE_LOCAL_COMMIT)
            rows.add(tx.id)
            stack.mark()

    with stack.crash_at(step):
        stack.run(main())
    if stack.has_crashed:
        stack.restart()
    stack.wait_until_decided()
    assert len(values(stack)) == len(rows)
    assert stack.has_crashed is False


def test_every_crash_runs_asynchronous_clients() -> None:
    """Rows and messages agree after each death, and a step that is never reached is an error."""

    def place(stack: MemoryStack, step: Step | None) -> Callable[[], tuple[object, object]]:
        stack.create_topic("orders")
        rows: set[str] = set()

        async def check(view: MessageView) -> Resolution:
            return Resolution.COMMIT if view.transaction_id in rows else Resolution.ROLLBACK

        async def main() -> None:
            async with (
                stack.async_producer("g", checker=check) as producer,
                producer.begin() as tx,
            ):
                await tx.send(message(3))
                stack.mark(Step.BEFORE_LOCAL_COMMIT)
                rows.add(tx.id)
                stack.mark()

        with stack.crash_at(step):
            stack.run(main())
        return lambda: (len(rows), len(stack.read_committed("orders")))

    every_crash(place)


def test_a_loop_that_nothing_wakes_ends_with_an_error(stack: MemoryStack) -> None:
    """A test that waits for ever fails, in virtual time."""
    with pytest.raises(TimeoutError, match="no task of the loop"):
        stack.run(asyncio.Event().wait())


def test_a_step_that_is_not_reached_is_an_error(stack: MemoryStack) -> None:
    """As for blocking clients."""

    async def main() -> None:
        async with stack.async_producer("g", checker=commits) as producer:
            await producer.begin().send(message())

    with pytest.raises(CrashNotReachedError), stack.crash_at(Step.BEFORE_DECISION):
        stack.run(main())


PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "asyncio.md"


def test_the_page_of_asyncio_runs_as_it_stands(halfbridge_memory: MemoryStack) -> None:
    """Its service, its checker and its test."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(block, names)
    names["test_an_order_survives_a_death"](halfbridge_memory)


def test_the_page_has_every_await_at_which_a_task_may_be_cancelled() -> None:
    """Each awaited call of the producer and of the transaction is in the table of the page."""
    table = PAGE.read_text("utf-8").split("## Cancellation")[1].split("##")[0]
    for kind in (AsyncTransactionProducer, AsyncTransaction):
        for name, call in vars(kind).items():
            if asyncio.iscoroutinefunction(call) and not name.startswith("_"):
                assert f"`{name}" in table, name


class FencedService:
    """Orders in a SQLite file by aiosqlite, and their messages."""

    def __init__(self, path: Path) -> None:
        self._engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        self._path = path
        self.fence = AsyncFence(self._engine, producer_group="g")

    async def run(self, stack: MemoryStack, count: int) -> float:
        """Place orders; return the virtual seconds that it took."""
        async with self._engine.begin() as connection:
            await connection.execute(text("CREATE TABLE placed (number INTEGER)"))
        await self.fence.create()
        async with stack.async_producer("g", checker=self.fence.check) as producer:
            began_s = asyncio.get_running_loop().time()
            for number in range(count):
                async with self.fence.async_transaction(producer) as (tx, connection):
                    row = text("INSERT INTO placed VALUES (:number)")
                    await connection.execute(row, {"number": number})
                    await tx.send(message(number))
            return asyncio.get_running_loop().time() - began_s

    def rows(self) -> list[bytes]:
        """Close the service's connections, and return what it has placed."""
        asyncio.run(self._engine.dispose())
        with closing(sqlite3.connect(self._path)) as connection:
            return [b"%d" % number for (number,) in connection.execute("SELECT * FROM placed")]


def test_a_database_that_works_in_a_thread_holds_virtual_time(
    stack: MemoryStack, tmp_path: Path
) -> None:
    """Twenty blocks of an AsyncFence take no minutes of virtual time, and are not checked."""
    service = FencedService(tmp_path / "shop.db")
    began_s = monotonic()
    took_s = stack.run(service.run(stack, 20))
    assert took_s < monotonic() - began_s + 10  # a block's own waits for Kafka
    rows = service.rows()
    assert len(rows) == 20
    assert values(stack, 20) == sorted(rows)


def test_an_async_fence_at_each_step(tmp_path: Path) -> None:
    """A service of AsyncFence and aiosqlite dies at each step: rows are messages."""
    numbers = count()

    def place(stack: MemoryStack, step: Step | None) -> Callable[[], tuple[object, object]]:
        stack.create_topic("orders")
        service = FencedService(tmp_path / f"{next(numbers)}.db")
        with stack.crash_at(step):
            stack.run(service.run(stack, 1))
        return lambda: (service.rows(), values(stack))

    every_crash(place)
