"""AsyncTransactionProducer: the client for asyncio, one for each event loop.

A shell around TransactionProducer and Transaction, which keep the states and write the records.
What would block is awaited: acknowledgements and room by `LoopWaits`, checks by `LoopChecks`, and
the rare questions to a broker in the loop's executor.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from halfbridge.bridge.check_pool import CheckCounts, is_async
from halfbridge.bridge.event_loop import LoopChecks, LoopWaits
from halfbridge.bridge.message import Message
from halfbridge.bridge.message_transaction import log_failed_rollback
from halfbridge.bridge.producer import CLOSE_TIMEOUT_S, TransactionProducer
from halfbridge.bridge.transaction import Event, State
from halfbridge.kafka.errors import (
    BridgeError,
    ConfigError,
    HalfNotStoredError,
    OtherLoopError,
    ProducerClosedError,
)
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from contextvars import Context
    from types import TracebackType

    from opentelemetry.metrics import MeterProvider
    from prometheus_client.registry import Collector
    from typing_extensions import Unpack

    from halfbridge.bridge.check_pool import Pool
    from halfbridge.bridge.client_metrics import Measured
    from halfbridge.bridge.config import BridgeConfig, ClientSettings
    from halfbridge.bridge.delivery import Figures
    from halfbridge.bridge.futures import DecisionFuture, SendFuture
    from halfbridge.bridge.message import (
        Answer,
        DecisionReceipt,
        MessageView,
        Resolution,
        SendReceipt,
    )
    from halfbridge.bridge.message_transaction import Transaction
    from halfbridge.bridge.shared import Shared
    from halfbridge.bridge.tracing import OpenTelemetryTracing
    from halfbridge.kafka.ports import Ports

_T = TypeVar("_T")
_SEND_CANCELLED = "a send was cancelled, so its message may be missing; only rollback is allowed"


class AsyncTransactionProducer:
    """Sends messages that become visible only if their transaction is committed; for asyncio.

    For the tasks of one event loop, which share its batches; not thread-safe, and not fork-safe.
    An asynchronous context manager: entering checks the topics and starts to answer checks.

    Args:
        checker: As TransactionProducer's, an `async def`. Each check is a task of the loop with a
            copy of the context in which the producer was started; `check_threads` tasks run at a
            time. A check that runs longer than check_timeout_ms is cancelled, and asked again. A
            blocking checker is refused: await `asyncio.to_thread(check, view)` in an `async def`.
        topics: Real topics that this producer may send to and is asked about; empty: any topic,
            checked at each send.
        on_hung: As TransactionProducer's; called on the loop, so it must not block.
        on_decision_failed: As TransactionProducer's; called on the loop.
        config: Settings; None: the environment (HALFBRIDGE_BOOTSTRAP_SERVERS, ...), then defaults.
        tracing: As TransactionProducer's.
        ports: Kafka, clock and threads; None: the client library and the system.
        settings: Any field of BridgeConfig (bootstrap_servers, producer_group, ...); overrides
            `config` and the environment.

    Raises:
        ConfigError: a setting is wrong or missing; correct it. Nothing was sent.
    """

    def __init__(
        self,
        *,
        checker: Callable[[MessageView], Awaitable[Resolution | Answer]],
        topics: Sequence[str] = (),
        on_hung: Callable[[CheckCounts], object] | None = None,
        on_decision_failed: Callable[[DecisionFuture], object] | None = None,
        config: BridgeConfig | None = None,
        tracing: OpenTelemetryTracing | None = None,
        ports: Ports | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        given: object = checker
        if not callable(given) or not is_async(given):
            raise ConfigError(
                field="checker",
                value=repr(checker),
                origin="argument",
                allowed="an `async def`: await asyncio.to_thread(check, view) in it for a function"
                " that blocks, or take TransactionProducer",
            )
        self._loop: AbstractEventLoop | None = None
        self._waits: LoopWaits | None = None
        if tracing is not None:
            checker = tracing.async_checker(checker)
        begin_check: Callable[[MessageView], Any] = partial(_begin_check, checker)
        self._client = _Client(
            checker=begin_check,
            topics=topics,
            on_hung=None if on_hung is None else partial(self._call, on_hung),
            on_decision_failed=None
            if on_decision_failed is None
            else partial(self._call, on_decision_failed),
            config=config,
            ports=ports,
            **settings,
        )
        if tracing is not None:
            self._client.trace(tracing)

    @property
    def config(self) -> BridgeConfig:
        """The settings in force."""
        return self._client.config

    async def start(self) -> None:
        """Check the topics and start to answer checks, on this loop; `async with` calls this.

        Cancelled: the start that has begun continues in its thread, and is closed at its end.

        Raises:
            OtherLoopError: started by another event loop; make a producer for this one.
            ProducerClosedError, ForkedProcessError: closed, or made before a fork; make another.
            TopicSetupError, ConfigError, BridgeError: as `TransactionProducer.start`.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = self._client.loop = loop
            self._client.context = copy_context()
        self._check_loop()
        starting = loop.run_in_executor(None, self._client.start)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._close_abandoned)
            raise
        if self._waits is None:
            self._waits = self._client.new_waits()

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Stop answering checks, wait for outstanding records, free all; `async with` calls this.

        Records without an acknowledgement after `timeout` seconds are in doubt. Cancelled: the
        close continues in its thread.
        """
        loop, waits = self._loop, self._waits
        if loop is None or waits is None or self._client.shared.is_forked:
            return
        self._check_loop()

        async def close() -> None:
            await waits.handed_over(timeout)
            await loop.run_in_executor(None, self._client.close, timeout)

        await asyncio.shield(loop.create_task(close()))

    def begin(
        self,
        *,
        immunity_ms: int | None = None,
        context: bytes | None = None,
        placement_key: bytes | None = None,
        rollback_on: type[BaseException] | Iterable[type[BaseException]] = (),
    ) -> AsyncTransaction:
        """Return a new message transaction; many may be open at a time. Never waits.

        Arguments and errors are those of `TransactionProducer.begin`, and OtherLoopError.
        """
        waits = self._started()
        transaction = self._client.begin(
            immunity_ms=immunity_ms,
            context=context,
            placement_key=placement_key,
            rollback_on=rollback_on,
        )
        return AsyncTransaction(transaction, waits)

    async def repeat_commit(
        self, transaction_id: str, *, half_partition: int, half_offset: int, message_count: int
    ) -> DecisionReceipt:
        """Send COMMIT of a transaction that any member of the group has sent; await its ack.

        Arguments and errors are those of `TransactionProducer.repeat_commit`, and
        OutcomeUnknownError: not acknowledged; the check settles it.
        """
        waits = self._started()
        await waits.room()
        future = self._client.repeat_commit(
            transaction_id,
            half_partition=half_partition,
            half_offset=half_offset,
            message_count=message_count,
        )
        return await _decided(waits, future, None)

    async def flush(self, timeout: float = CLOSE_TIMEOUT_S) -> int:
        """As `TransactionProducer.flush`; ProducerClosedError also where it is not started."""
        waits = self._started()
        await waits.handed_over(timeout)
        return await asyncio.to_thread(self._client.flush, timeout)

    @property
    def half_partitions(self) -> int:
        """As `TransactionProducer.half_partitions`, with its errors."""
        return self._client.half_partitions

    @property
    def failed_decisions(self) -> int:
        """How many decisions failed while no task awaited them; checks settle them."""
        return self._client.failed_decisions

    def check_counts(self) -> CheckCounts:
        """Return the check responder's counts, and how many checkers hang."""
        return self._client.check_counts()

    def figures(self) -> Figures | None:
        """As `TransactionProducer.figures`."""
        return self._client.figures()

    def collector(self, *others: Measured) -> Collector:
        """As `TransactionProducer.collector`."""
        return self._client.collector(*others)

    def register_meters(
        self,
        *others: Measured,
        provider: MeterProvider | None = None,
    ) -> None:
        """As `TransactionProducer.register_meters`."""
        self._client.register_meters(*others, provider=provider)

    async def __aenter__(self) -> AsyncTransactionProducer:  # noqa: PYI034  (Self came with 3.11)
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def _started(self) -> LoopWaits:
        self._check_loop()
        if self._waits is None:
            raise ProducerClosedError("this producer is not started; use `async with` or start()")
        return self._waits

    def _check_loop(self) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop or self._loop is None:
            return
        if self._waits is not None:
            self._client.shared.check_open()  # a fork says more than its loop
        raise OtherLoopError(
            "this producer belongs to the event loop that started it; make a producer in each loop"
            " (asyncio.run makes a new loop each time)"
        )

    def _call(self, callback: Callable[[Any], object], about: object) -> None:
        """Have the loop call a callback of the user; nothing is called once the loop is closed."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(callback, about)

    def _close_abandoned(self, starting: asyncio.Future[None]) -> None:
        if not starting.cancelled() and starting.exception() is None and self._loop is not None:
            self._loop.run_in_executor(None, self._client.close)


class AsyncTransaction:
    """One message transaction, for the tasks of one loop; made by `AsyncTransactionProducer.begin`.

    As an asynchronous context manager: leaving normally commits if anything was sent and nothing
    was decided. Leaving by an exception, a cancellation too, decides nothing, because the local
    transaction may have committed although its call raised; the check decides, unless `rollback`
    was called or `begin(rollback_on=...)` names the exception.

    Where a task is cancelled:

    - in `begin` or in the block: nothing is decided, and a check decides.
    - in `send` or `send_all`, before the first message is handed to Kafka (they wait for room, or
      ask for a new topic): nothing was sent, and the transaction continues as before.
    - in `send` or `send_all`, after that: messages may be stored; only rollback is allowed.
    - in `commit`, `rollback` or the end of the block, before the decision is sent: nothing is
      decided; repeat the call, or a check decides.
    - in `commit(wait=True)`, `rollback(wait=True)` or `decided`, after that: the decision is on
      its way; only the same call may be repeated. If it fails, `on_decision_failed` is called.
    - in a `rollback` that asks a broker first, because no message was acknowledged: ROLLBACK is
      sent, or a check decides.
    """

    __slots__ = ("_transaction", "_waits")

    def __init__(self, transaction: Transaction, waits: LoopWaits) -> None:
        self._transaction = transaction
        self._waits = waits

    @property
    def id(self) -> str:
        """Transaction id. Store it with the local transaction, so that a checker finds it."""
        return self._transaction.id

    @property
    def state(self) -> State:
        """The state of the transaction; see bridge/transaction.py."""
        return self._transaction.state

    @property
    def message_count(self) -> int:
        """How many messages were sent so far, acknowledged or not."""
        return self._transaction.message_count

    async def send(self, message: Message, timeout: float | None = None) -> SendReceipt:
        """Store a half message durably and return its position.

        `timeout` is in seconds, for the ack; None: the config's send_timeout_ms. Raises what
        `Transaction.send` and `send_async` raise.
        """
        return (await self.send_all((message,), timeout))[0]

    async def send_all(
        self, messages: Iterable[Message], timeout: float | None = None
    ) -> list[SendReceipt]:
        """Store half messages in one round trip, and return their positions in order.

        As `Transaction.send_all`: the messages before a refused one are sent.
        """
        futures: list[SendFuture] = []
        waits, now = self._waits, self._transaction.shared.now
        try:
            for message in messages:
                await self._make_ready(message)
                futures.append(self._transaction.send_async(message))
            config = self._transaction.shared.config
            seconds = config.send_timeout_ms / MS_PER_S if timeout is None else timeout
            until = now() + seconds
            for future in futures:
                await waits.until_done(future, max(0.0, until - now()))
        except asyncio.CancelledError:
            self._give_up(futures)
            raise
        return [future.outcome(seconds) for future in futures]

    async def commit(
        self, timeout: float | None = None, *, wait: bool | None = None
    ) -> DecisionReceipt | None:
        """Decide COMMIT; return its position where its ack was awaited, else None. Idempotent.

        Arguments and errors are those of `Transaction.commit`.
        """
        await self._waits.room()
        return await self._settled(self._transaction.commit_async(), timeout, wait=wait)

    async def rollback(
        self, timeout: float | None = None, *, wait: bool | None = None
    ) -> DecisionReceipt | None:
        """Decide ROLLBACK, as `commit`. Waits for outstanding sends first.

        Arguments and errors are those of `Transaction.rollback`.
        """
        transaction = self._transaction
        transaction.shared.check_open(decides=True)
        await self._await_sends()
        if transaction.is_unplaced:
            future = await asyncio.to_thread(transaction.rollback_async)
        else:
            await self._waits.room()
            future = transaction.rollback_async()
        return await self._settled(future, timeout, wait=wait)

    async def decided(self, timeout: float | None = None) -> DecisionReceipt | None:
        """Wait for the ack of the newest decision; return its position, None before a decision.

        `timeout` is in seconds; None: the config's decision_timeout_ms.

        Raises:
            OutcomeUnknownError: not acknowledged (in time); the check settles it.
        """
        future = self._transaction.decision
        return None if future is None else await _decided(self._waits, future, timeout)

    @property
    def blocking(self) -> Transaction:
        """The transaction below, for a fence; its calls that wait would block the loop."""
        return self._transaction

    async def end_sends(self) -> int:
        """Refuse further sends, await those outstanding; as `Transaction.end_sends`."""
        self._transaction.refuse_sends()
        await self._await_sends()
        return self._transaction.sent_count()

    async def is_unanswered(self) -> bool:
        """Return whether a send has failed, and none was acknowledged, once none is outstanding."""
        if self._transaction.state is not State.SEND_FAILED:
            await self._await_sends()
        return self._transaction.is_unanswered()

    async def __aenter__(self) -> AsyncTransaction:  # noqa: PYI034  (Self came with 3.11)
        self._transaction.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._transaction.ending(error):
            await self._decide_at_exit(kind)

    async def _decide_at_exit(self, kind: type[BaseException] | None) -> None:
        due = self._transaction.due_at_exit(kind)
        if due is Event.COMMIT:
            await self.commit()
        elif due is Event.ROLLBACK and not await self.is_unanswered():
            try:
                await self.rollback()
            except BridgeError as failure:
                log_failed_rollback(self.id, failure)

    async def _make_ready(self, message: Message) -> None:
        """Await what `Transaction.send_async` would block for."""
        shared = self._transaction.shared
        try:
            given: object = message
            if isinstance(given, Message) and not shared.has_seen(given):
                await asyncio.to_thread(shared.check, message)
            await self._waits.room()
        except BridgeError as refused:
            self._transaction.note_refusal(message, refused)
            raise

    async def _await_sends(self) -> None:
        """Wait until no send is outstanding; give up those that are after send_timeout_ms."""
        shared = self._transaction.shared
        until = shared.now() + shared.config.send_timeout_ms / MS_PER_S
        for send in self._transaction.unacknowledged:
            await self._waits.until_done(send, max(0.0, until - shared.now()))
            self._transaction.give_up_send(send)  # unless it is done

    def _give_up(self, futures: list[SendFuture]) -> None:
        """Allow only rollback after a cancelled send, whether its messages are stored or not."""
        for future in futures:
            self._transaction.give_up_send(future)
        if futures:
            self._transaction.commit_held = _SEND_CANCELLED
            self._transaction.refused = HalfNotStoredError(
                _SEND_CANCELLED, transaction_id=self.id
            )  # for a fence, which holds COMMIT itself

    async def _settled(
        self, future: DecisionFuture, timeout: float | None, *, wait: bool | None
    ) -> DecisionReceipt | None:
        if wait is None:
            wait = timeout is not None or self._transaction.shared.waits_for_decisions
        if wait or future.done():  # done: acknowledged before, or not sent
            return await _decided(self._waits, future, timeout)
        return None


async def _decided(
    waits: LoopWaits, future: DecisionFuture, timeout: float | None
) -> DecisionReceipt:
    shared = future.transaction.shared
    seconds = shared.config.decision_timeout_ms / MS_PER_S if timeout is None else timeout
    try:
        await waits.until_done(future, seconds)
    except asyncio.CancelledError:
        future.add_done_callback(_note_failure)  # no task awaits it any more
        raise
    return future.outcome(seconds)


def _note_failure(future: DecisionFuture) -> None:
    if future.exception() is not None:
        future.transaction.shared.failures.note(future)


class _Client(TransactionProducer):
    """The producer below, whose checks run on the loop."""

    loop: AbstractEventLoop
    context: Context

    @property
    def shared(self) -> Shared:
        return self._started()

    def start(self) -> None:
        super().start()
        self.shared.gate.await_reading()  # in this thread: `begin` may not wait on the loop

    def trace(self, tracing: OpenTelemetryTracing) -> None:
        self._new_transaction = tracing.transaction

    def new_waits(self) -> LoopWaits:
        return LoopWaits(self._started(), self._ports, self.loop)

    def _new_pool(self, *work: Any, **limits: Any) -> Pool[Any]:
        return LoopChecks(self.loop, self.context, *work, **limits)


def _begin_check(checker: Callable[[MessageView], _T], view: MessageView) -> _T:
    """Return the coroutine of a check, for `LoopChecks`; _Client would refuse the `async def`."""
    return checker(view)
