"""The asynchronous transaction at each await: acknowledgements, cancellation, back-pressure."""

import asyncio
from collections.abc import Awaitable, Callable
from threading import Thread
from typing import Any

import pytest
import uvloop

from halfbridge.bridge import (
    AsyncTransaction,
    AsyncTransactionProducer,
    BackpressureError,
    ConfigError,
    HalfNotStoredError,
    IllegalTransitionError,
    InvalidMessageError,
    Message,
    MessageView,
    OutcomeUnknownError,
    Resolution,
    State,
    TransactionProducer,
)
from halfbridge.bridge.event_loop import LoopWaits
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.bridge.shared import Shared
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde import OP, OpKind
from halfbridge.testkit.memory import MemoryStack
from tests.unit.bridge.fake_writer import FakeWriter, shared_around

MESSAGE = Message("orders", key=b"k", value=b"v")
LOST = KafkaFailure(Code.MSG_TIMED_OUT)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts how often other threads wake it."""

    woken = 0

    def call_soon_threadsafe(self, *call: Any, **given: Any) -> asyncio.Handle:
        self.woken += 1
        return super().call_soon_threadsafe(*call, **given)


class Bench:
    """A writer whose acknowledgements a test gives, and transactions of one loop on it."""

    def __init__(self, **settings: Any) -> None:
        self.failed: list[Any] = []
        self.writer = FakeWriter()
        self.shared: Shared = shared_around(self.writer, self.failed.append, **settings)
        self.shared.check(MESSAGE)  # the topic is known
        self.waits = LoopWaits(self.shared, system_ports(), asyncio.get_running_loop())

    def begin(self) -> AsyncTransaction:
        return AsyncTransaction(Transaction(self.shared), self.waits)

    def ack(self, *answers: Any) -> None:
        """Serve acknowledgements: None, or an error."""
        self.writer.answers = list(answers)
        self.shared.server.serve(0.0)

    async def sent(self, tx: AsyncTransaction) -> AsyncTransaction:
        """Return a transaction whose half message is stored."""
        sending = asyncio.create_task(tx.send(MESSAGE))
        await self.until(lambda: tx.message_count == 1)
        self.ack(None)
        await sending
        return tx

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let the loop go on until something is so."""
        async with _Limit():
            while not is_so():  # noqa: ASYNC110  (acknowledgements come by `ack`)
                await asyncio.sleep(0)

    def kinds(self) -> list[OpKind]:
        """Return the decisions that were sent."""
        return [
            OP.decode(each.value).kind
            for each in self.writer.sent
            if each.topic == self.shared.op_topic
        ]


class _Limit:
    """Cancels its block after 20 s, as asyncio.timeout does from Python 3.11."""

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._timer = asyncio.get_running_loop().call_later(20.0, task.cancel)

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()


async def cancelled(task: "asyncio.Task[Any]") -> None:
    """Cancel a task that waits."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def run(main: Callable[[], Awaitable[None]]) -> CountingLoop:
    """Run a coroutine function on a new loop; return the loop."""
    loop = CountingLoop()
    try:
        loop.run_until_complete(main())  # type: ignore[arg-type]  # a coroutine
    finally:
        loop.close()
    return loop


# --- acknowledgements ---------------------------------------------------------------------------


def test_a_batch_of_acknowledgements_wakes_the_loop_once() -> None:
    """However many tasks it ends, where another thread serves it."""

    async def main() -> None:
        bench = Bench()
        tasks = [asyncio.create_task(bench.begin().send(MESSAGE)) for _ in range(50)]
        await bench.until(lambda: len(bench.writer.sent) == 50)
        thread = Thread(target=bench.ack, args=[None] * 50)
        thread.start()
        thread.join()
        receipts = await asyncio.gather(*tasks)
        assert [each.message_index for each in receipts] == [0] * 50

    assert run(main).woken == 1


def test_send_returns_what_the_broker_says() -> None:
    """An error, a time-out and a refusal are those of the blocking client."""

    async def main() -> None:
        bench = Bench()
        tx = bench.begin()
        sending = asyncio.create_task(tx.send(MESSAGE))
        await bench.until(lambda: tx.message_count == 1)
        bench.ack(LOST)
        with pytest.raises(HalfNotStoredError, match="roll back"):
            await sending
        assert tx.state is State.SEND_FAILED
        late = bench.begin()
        with pytest.raises(HalfNotStoredError, match="in 0 s"):
            await late.send(MESSAGE, timeout=0)
        refused = bench.begin()
        with pytest.raises(InvalidMessageError):
            await refused.send(Message("orders", immunity_ms=10**10))
        assert refused.state is State.INIT

    run(main)


def test_a_decision_is_awaited_on_request() -> None:
    """Else it is sent; `decided` waits for it, and is None before."""

    async def main() -> None:
        bench = Bench()
        tx = bench.begin()
        assert await tx.decided() is None
        await bench.sent(tx)
        assert await tx.commit() is None
        assert tx.state is State.COMMIT_SENT
        waiting = asyncio.create_task(tx.decided())
        again = asyncio.create_task(tx.commit(wait=True))
        await asyncio.sleep(0)
        bench.ack(None)
        receipt = await waiting
        assert (receipt, tx.state) == (await again, State.COMMITTED)
        assert receipt is not None
        assert (receipt.resolution, bench.kinds()) == (Resolution.COMMIT, [OpKind.COMMIT])

    run(main)


def test_a_decision_that_is_not_acknowledged_is_in_doubt() -> None:
    """It may be repeated."""

    async def main() -> None:
        bench = Bench()
        tx = await bench.sent(bench.begin())
        with pytest.raises(OutcomeUnknownError, match=r"in 0\.01 s"):
            await tx.commit(timeout=0.01)
        assert tx.state is State.COMMIT_IN_DOUBT
        await tx.commit()
        assert bench.kinds() == [OpKind.COMMIT] * 2

    run(main)


# --- cancellation -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_acked", [False, True])
def test_cancelled_in_send_only_rollback_is_allowed(is_acked: bool) -> None:
    """Whether the acknowledgement comes later, or came just before."""

    async def main() -> None:
        bench = Bench()
        tx = bench.begin()
        sending = asyncio.create_task(tx.send(MESSAGE))
        await bench.until(lambda: tx.message_count == 1)
        if is_acked:
            bench.ack(None)
        await cancelled(sending)
        if not is_acked:
            bench.ack(None)
        with pytest.raises(IllegalTransitionError, match="only rollback is allowed"):
            await tx.commit()
        await tx.rollback()
        assert bench.kinds() == [OpKind.ROLLBACK]

    run(main)


def test_cancelled_in_send_all_gives_up_all_that_was_sent() -> None:
    """The end of the block then decides nothing, because the cancellation leaves it."""

    async def main() -> None:
        bench = Bench()
        tx = bench.begin()

        async def block() -> None:
            async with tx:
                await tx.send_all([MESSAGE] * 3)

        task = asyncio.create_task(block())
        await bench.until(lambda: tx.message_count == 3)
        await cancelled(task)
        assert (tx.state, bench.kinds()) == (State.SEND_FAILED, [])

    run(main)


def test_cancelled_in_back_pressure_nothing_was_sent() -> None:
    """The transaction continues as before, and others get room."""

    async def main() -> None:
        bench = Bench(in_flight_max=1)
        first, second = bench.begin(), bench.begin()
        sending = asyncio.create_task(first.send(MESSAGE))
        await bench.until(lambda: first.message_count == 1)
        waiting = asyncio.create_task(second.send(MESSAGE))
        await asyncio.sleep(0)
        await cancelled(waiting)
        assert (second.state, len(bench.writer.sent)) == (State.INIT, 1)
        bench.ack(None)
        await sending
        await bench.sent(second)
        await second.commit()
        assert bench.kinds() == [OpKind.COMMIT]

    run(main)


def test_cancelled_before_the_decision_is_sent_nothing_is_decided() -> None:
    """The call may be repeated."""

    async def main() -> None:
        bench = Bench(in_flight_max=1)
        tx = await bench.sent(bench.begin())
        other = asyncio.create_task(bench.begin().send(MESSAGE))
        await bench.until(lambda: len(bench.writer.sent) == 2)
        committing = asyncio.create_task(tx.commit())
        await asyncio.sleep(0)
        await cancelled(committing)
        assert (tx.state, bench.kinds()) == (State.HALF_SENT, [])
        bench.ack(None)
        await other
        await tx.commit()
        assert bench.kinds() == [OpKind.COMMIT]

    run(main)


@pytest.mark.parametrize("answer", [None, LOST])
def test_cancelled_while_a_decision_is_awaited_it_is_on_its_way(answer: Any) -> None:
    """Its failure is counted and handed to the callback, because no task awaits it."""

    async def main() -> None:
        bench = Bench()
        tx = await bench.sent(bench.begin())
        committing = asyncio.create_task(tx.commit(wait=True))
        await bench.until(lambda: tx.state is State.COMMIT_SENT)
        await cancelled(committing)
        bench.ack(answer)
        assert tx.state is (State.COMMITTED if answer is None else State.COMMIT_IN_DOUBT)
        assert bench.shared.failures.count == len(bench.failed) == (answer is not None)

    run(main)


def test_cancelled_in_a_rollback_that_awaits_sends_nothing_is_decided() -> None:
    """A rollback waits for outstanding sends first."""

    async def main() -> None:
        bench = Bench()
        tx = bench.begin()
        sending = asyncio.create_task(tx.send(MESSAGE))
        await bench.until(lambda: tx.message_count == 1)
        rolling = asyncio.create_task(tx.rollback())
        await asyncio.sleep(0)
        await cancelled(rolling)
        assert (tx.state, bench.kinds()) == (State.HALF_SENDING, [])
        bench.ack(None)
        await sending
        await tx.rollback()
        assert bench.kinds() == [OpKind.ROLLBACK]

    run(main)


# --- back-pressure ------------------------------------------------------------------------------


def test_back_pressure_ends_with_an_error_and_the_loop_continues() -> None:
    """Nothing was sent; the send may be repeated."""

    async def main() -> None:
        bench = Bench(in_flight_max=1, send_timeout_ms=200)
        first, second = bench.begin(), bench.begin()
        sending = asyncio.create_task(first.send(MESSAGE, timeout=20))
        await bench.until(lambda: first.message_count == 1)
        waiting = asyncio.create_task(second.send(MESSAGE))
        ticks = 0
        while not waiting.done():
            ticks += 1
            await asyncio.sleep(0)
        with pytest.raises(BackpressureError, match="in_flight_max"):
            await waiting
        assert ticks > 10
        assert second.state is State.INIT
        bench.ack(None)
        await sending
        await bench.sent(second)

    run(main)


def test_tasks_are_let_in_as_there_is_room_in_their_order() -> None:
    """Never more records than in_flight_max are unacknowledged."""

    async def main() -> None:
        bench = Bench(in_flight_max=4)
        order: list[int] = []

        async def one(number: int) -> None:
            await bench.begin().send(Message("orders", value=b"%d" % number))
            order.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(20)]
        while not all(task.done() for task in tasks):
            assert len(bench.writer) <= 4
            bench.ack(*[None] * len(bench.writer))
            await asyncio.sleep(0)
        assert order == list(range(20))

    run(main)


def test_a_record_that_finds_the_clients_queue_full_is_kept_and_sent_later() -> None:
    """The loop runs; other sends wait after it."""

    async def main() -> None:
        bench = Bench()
        bench.writer.refusals = [BufferError(), BufferError()]
        first, second = bench.begin(), bench.begin()
        sending = asyncio.create_task(first.send(MESSAGE))
        await bench.until(lambda: first.message_count == 1)
        waiting = asyncio.create_task(second.send(MESSAGE))
        await asyncio.sleep(0)
        assert (bench.writer.sent, second.message_count) == ([], 0)
        await bench.until(lambda: len(bench.writer.sent) == 2)
        bench.ack(None, None)
        await asyncio.gather(sending, waiting)
        assert first.state is second.state is State.HALF_SENT

    run(main)


def test_a_record_that_never_finds_room_fails() -> None:
    """Within send_timeout_ms, or at once when the producer closes."""

    async def main() -> None:
        for closes in (False, True):
            bench = Bench(send_timeout_ms=200)
            bench.writer.refusals = [BufferError()] * 1_000
            tx = bench.begin()
            sending = asyncio.create_task(tx.send(MESSAGE, timeout=20))
            await bench.until(lambda tx=tx: tx.message_count == 1)
            if closes:
                await bench.waits.handed_over(0.0)
            with pytest.raises(HalfNotStoredError, match="queue stayed full"):
                await sending

    run(main)


# --- bad input ----------------------------------------------------------------------------------


def test_a_checker_of_the_other_kind_is_refused_with_what_to_do() -> None:
    """One line each."""

    async def awaits(_view: object) -> Resolution:
        return Resolution.UNKNOWN

    def blocks(_view: object) -> Resolution:
        return Resolution.UNKNOWN

    given = {"bootstrap_servers": "b:1", "producer_group": "g"}
    with pytest.raises(ConfigError, match="needs AsyncTransactionProducer"):
        TransactionProducer(checker=awaits, **given)
    with pytest.raises(ConfigError, match=r"asyncio\.to_thread\(check, view\)"):
        AsyncTransactionProducer(checker=blocks, **given)


def test_uvloop_serves_as_well() -> None:
    """Only what every loop has is used."""

    async def main() -> None:
        bench = Bench()
        tx = await bench.sent(bench.begin())
        await tx.commit()
        assert bench.kinds() == [OpKind.COMMIT]

    loop = uvloop.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


def test_the_end_of_sends_does_not_block_the_loop() -> None:
    """A send without an acknowledgement is given up by awaiting; no poll of the loop waits."""

    async def main() -> None:
        bench = Bench(send_timeout_ms=300)
        tx = bench.begin()
        sending = asyncio.create_task(tx.send(MESSAGE))
        await bench.until(lambda: tx.message_count == 1)
        with pytest.raises(HalfNotStoredError, match="do not commit the local transaction"):
            await tx.end_sends()
        assert bench.writer.longest_poll_s == 0.0
        with pytest.raises(HalfNotStoredError):
            await sending

    run(main)


def test_begin_does_not_wait_for_the_first_reading_of_the_settings() -> None:
    """`start` waits for it, in a thread."""

    async def commit(_: MessageView) -> Resolution:
        return Resolution.COMMIT

    async def main(stack: MemoryStack) -> None:
        async with stack.async_producer("g", checker=commit) as producer:
            assert not producer._client.shared.gate.waits_for_reading

    with MemoryStack() as stack:
        stack.run(main(stack))
