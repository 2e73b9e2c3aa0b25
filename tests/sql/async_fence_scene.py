"""An asyncio service with a fence on a real database, and a fake Kafka that a test can silence."""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, make_url, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from halfbridge.bridge import AsyncTransaction, Message, MessageView
from halfbridge.bridge.event_loop import LoopWaits
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.kafka.adapter import system_ports
from halfbridge.serde import OP
from halfbridge.sql import AsyncFence
from halfbridge.sql.fence_purge import (
    DEAD_LETTER_RETENTION_MS,
    TRANSACTION_AGE_MS_MAX,
    needed_ms,
)
from tests.sql.databases import ASYNC_DRIVERS, Database
from tests.sql.fence_scene import WORK, new_id
from tests.unit.bridge.fake_writer import FakeWriter, shared_around

GROUP = "g"
MESSAGE = Message("orders", key=b"k", value=b"v")


def on_drivers(*names: str) -> pytest.MarkDecorator:
    """Run a test with each asyncio driver of these databases, by default of all."""
    each = [(name, driver) for name in names or ASYNC_DRIVERS for driver in ASYNC_DRIVERS[name]]
    ids = [driver for _, driver in each]
    return pytest.mark.parametrize(("database", "driver"), each, indirect=["database"], ids=ids)


class HeldKafka(FakeWriter):
    """Acknowledges all messages unless `is_silent` is set."""

    is_silent = False

    def poll(self, wait_s: float) -> int:
        self.answers = [] if self.is_silent else [None] * len(self)
        return super().poll(wait_s)


class Client:
    """Begins transactions as AsyncTransactionProducer does, on a HeldKafka."""

    def __init__(self, kafka: HeldKafka, **settings: Any) -> None:
        ports = system_ports()
        self._shared = shared_around(kafka, ports=ports, producer_group=GROUP, **settings)
        self._shared.check(MESSAGE)  # the topic is known
        self._waits = LoopWaits(self._shared, ports, asyncio.get_running_loop())
        self.config = self._shared.config
        self.op_topic = self._shared.op_topic

    async def start(self) -> None:
        """Do nothing; a coroutine function here marks an asyncio client."""

    def begin(self, **given: Any) -> AsyncTransaction:
        return AsyncTransaction(Transaction(self._shared, **given), self._waits)


class AsyncScene:
    """One service: its engine, fence and client, and queries of the database and the sent ops."""

    def __init__(self, truth: Engine, engine: AsyncEngine, **settings: Any) -> None:
        self._truth = truth
        self.engine = engine
        self.kafka = HeldKafka()
        self.producer: Any = Client(self.kafka, **settings)
        self.fence = AsyncFence(engine, producer_group=GROUP)
        self.sessions = async_sessionmaker(engine)
        self.ids: list[str] = []

    def block(self, *, is_session: bool = False, **given: Any) -> Any:
        """Return a block of the fence, on a connection or a session."""
        if is_session:
            given["session_factory"] = self.sessions
        return self.fence.async_transaction(self.producer, **given)

    async def order(self, number: int, *, is_session: bool = False) -> None:
        """Send, work, and send again: a block with a wait of each kind."""
        async with self.block(is_session=is_session) as (tx, handle):
            self.ids.append(tx.id)
            await tx.send(MESSAGE)
            await work(handle, number)
            await tx.send(MESSAGE)

    def next_begin(self) -> asyncio.Event:
        """Return an event that is set when the next BEGIN is given to the driver."""
        begun = asyncio.Event()

        def given(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("BEGIN"):
                begun.set()

        event.listen(self.engine.sync_engine, "before_cursor_execute", given)
        return begun

    def write_old_rows(self, count: int) -> None:
        """Write fence rows that a purge deletes."""
        age_ms = needed_ms(TRANSACTION_AGE_MS_MAX, DEAD_LETTER_RETENTION_MS) + 10_000
        row = {"producer_group": GROUP, "outcome": "committed", "message_count": 1}
        rows = [{**row, "transaction_id": new_id(age_ms), "created_at_ms": 1} for _ in range(count)]
        with self._truth.begin() as connection:
            connection.execute(insert(self.fence.tables[0]), rows)

    @contextmanager
    def locked(self) -> Iterator[Callable[[], None]]:
        """Hold SQLite's lock for writing; yield what releases it."""
        with self._truth.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection.rollback

    def worked(self) -> list[int]:
        with self._truth.connect() as connection:
            return list(connection.execute(select(WORK.c.number).order_by(WORK.c.number)).scalars())

    def fenced(self, transaction_id: str) -> tuple[str, int] | None:
        """Return outcome and count of the transaction's fence row; None without one."""
        row = self.fence.tables[0].c
        query = select(row.outcome, row.message_count)
        with self._truth.connect() as connection:
            found = connection.execute(query.where(row.transaction_id == transaction_id)).first()
        return None if found is None else (found[0], found[1])

    def decisions(self, transaction_id: str) -> list[tuple[str, int]]:
        """Return the decisions that were sent, with their numbers of messages."""
        ops = [
            OP.decode(each.value)
            for each in self.kafka.sent
            if each.topic == self.producer.op_topic and each.key == transaction_id.encode()
        ]
        return [(op.kind.name, op.message_count) for op in ops]

    async def view(self, transaction_id: str) -> MessageView:
        """Return the view of a check of the transaction."""
        return MessageView(
            topic="orders",
            partition=None,
            key=b"k",
            value=b"v",
            headers=(),
            transaction_id=transaction_id,
            check_number=1,
            attempt=1,
            born_timestamp=1,
            producer_group=GROUP,
            resume_count=0,
            context=await self.fence.context(),
        )


@asynccontextmanager
async def scene_on(database: Database, driver: str, **settings: Any) -> AsyncIterator[AsyncScene]:
    """Yield a service with tables; afterwards all its connections are back in the pool."""
    truth = database.engine()
    WORK.metadata.create_all(truth)
    engine = create_async_engine(make_url(database.url).set(drivername=driver))
    if database.name == "sqlite":
        _spare_the_disk(truth, engine.sync_engine)
    try:
        scene = AsyncScene(truth, engine, **settings)
        await scene.fence.create()
        yield scene
        await others_end()
        pool: Any = engine.pool
        assert pool.checkedout() == 0
    finally:
        await engine.dispose()


def _spare_the_disk(truth: Engine, engine: Engine) -> None:
    """Make commits survive a crash of the process, but not a power cut."""
    with truth.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    event.listen(engine, "connect", lambda made, _: made.cursor().execute(_NO_SYNC))


_CLOSING = "AsyncAdapt_aiosqlite_connection._terminate_graceful_close"
_NO_SYNC = "PRAGMA synchronous = NORMAL"


async def work(handle: Any, number: int) -> None:
    """Insert a row of work in the open database transaction."""
    await handle.execute(insert(WORK).values(number=number))


async def others_end() -> None:
    """Return once all other tasks of the loop have ended, except tasks that close aiosqlite.

    A connection whose `close` is cancelled twice never ends the task in which SQLAlchemy closes it.
    """
    others = {
        task
        for task in asyncio.all_tasks() - {asyncio.current_task()}
        if getattr(task.get_coro(), "__qualname__", "") != _CLOSING
    }
    if others:
        _, left = await asyncio.wait(others, timeout=30.0)
        assert not left


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine function on a new loop."""
    asyncio.run(main())


def cancelled_at(
    running: Coroutine[Any, Any, Any], number: int, *, is_repeated: bool = False
) -> Awaitable[int]:
    """Run a coroutine to its end, and cancel its task at wait `number`, counted from 1.

    Returns the number of waits. `is_repeated`: cancel at each later wait too, as cancel scopes do.
    """
    return _stepped(running, number, is_repeated=is_repeated)


@types.coroutine
def _stepped(
    running: Coroutine[Any, Any, Any], number: int, *, is_repeated: bool
) -> Generator[Any, Any, int]:
    task = asyncio.current_task()
    assert task is not None
    waits = 0
    step = _sending(running, None)
    while True:
        try:
            wanted = step()
        except StopIteration:
            return waits
        waits += 1
        if waits == number or (is_repeated and waits > number):
            task.cancel()
        try:
            got = yield wanted
        except BaseException as error:  # noqa: BLE001  (thrown on)
            step = _throwing(running, error)
        else:
            step = _sending(running, got)


def _throwing(running: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: running.throw(error)


def _sending(running: Coroutine[Any, Any, Any], got: Any) -> Callable[[], Any]:
    return lambda: running.send(got)
