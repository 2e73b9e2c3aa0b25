"""Transactions leave nothing behind in the memory of a service that runs for weeks.

Kept objects grow with the number of transactions. Objects in reference cycles are freed, but by the
garbage collector, whose work slows a busy service.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from halfbridge.bridge.local_transaction import decided, run
from halfbridge.bridge.message import Resolution
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import InvalidMessageError
from halfbridge.sql import AsyncFence, AsyncInbox, Fence, Inbox
from tests.sql.async_fence_scene import GROUP, MESSAGE, Client, HeldKafka
from tests.sql.databases import sqlite_database
from tests.sql.fence_scene import new_id
from tests.sql.kafka_message import delivered
from tests.unit.bridge.fake_writer import shared_around

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

WORK = text("SELECT 1")
TOO_LARGE = replace(MESSAGE, value=b"x" * 2_000_000)
FIRST, COUNTED = 20, 60  # transactions: until caches are full, and from then on


class BrokenError(Exception):
    """An error that a block raises."""


class _Client:
    """Begins transactions as TransactionProducer does, on a HeldKafka."""

    def __init__(self) -> None:
        self.kafka = HeldKafka()
        self.shared = shared_around(self.kafka, ports=system_ports(), producer_group=GROUP)
        self.config = self.shared.config

    def start(self) -> None:
        """Do nothing; a plain function here marks a blocking client."""

    def begin(self, **given: Any) -> Transaction:
        return Transaction(self.shared, **given)


class Service:
    """The blocking paths of a service, each one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._client: Any = _Client()
        self._engine = engine
        self._sessions = sessionmaker(engine)
        self._fence = Fence(engine, producer_group=GROUP)
        self._fence.create()
        self._inbox = Inbox(engine, group_id="billing")
        self._inbox.create()

    def forget(self) -> None:
        """Forget what was sent."""
        self._client.kafka.sent.clear()

    def commits(self) -> None:
        with self._client.begin() as tx:
            tx.send_all([MESSAGE, MESSAGE])
            tx.commit(wait=True).result()

    def rolls_back(self) -> None:
        with suppress(BrokenError), self._client.begin(rollback_on=(BrokenError,)) as tx:
            tx.send(MESSAGE)
            raise BrokenError

    def decides_nothing(self) -> None:
        with suppress(BrokenError), self._client.begin() as tx:
            tx.send(MESSAGE)
            raise BrokenError

    def sends_nothing(self) -> None:
        with suppress(InvalidMessageError), self._client.begin() as tx:
            tx.send(TOO_LARGE)

    def sends_in_transaction(self) -> None:
        tx = self._client.begin()
        receipt = tx.send(MESSAGE)
        outcome = run(lambda _message, _arg: Resolution.COMMIT, MESSAGE, None)
        decided(tx, receipt, outcome, None)

    def blocks(self) -> None:
        with self._fence.transaction(self._client) as (tx, connection):
            tx.send(MESSAGE)
            connection.execute(WORK)

    def blocks_with_session(self) -> None:
        with self._fence.transaction(self._client, session_factory=self._sessions) as (tx, session):
            tx.send(MESSAGE)
            session.execute(WORK)

    def block_fails(self) -> None:
        with suppress(BrokenError), self._fence.transaction(self._client) as (tx, connection):
            tx.send(MESSAGE)
            connection.execute(WORK)
            raise BrokenError

    def enters(self) -> None:
        with self._client.begin(context=self._fence.context()) as tx, self._engine.begin() as begun:
            tx.send(MESSAGE)
            self._fence.enter(begun, tx)

    def takes_once(self) -> None:
        with self._engine.begin() as begun:
            assert self._inbox.once(begun, delivered(new_id()))

    def takes_again(self) -> None:
        with self._sessions.begin() as begun:
            self._inbox.once(begun, None, key="the same")


class AsyncService:
    """The paths of a service on asyncio."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._kafka = HeldKafka()
        self._client: Any = Client(self._kafka)
        self._engine = engine
        self._sessions = async_sessionmaker(engine)
        self._fence = AsyncFence(engine, producer_group=GROUP)
        self._inbox = AsyncInbox(engine, group_id="billing")

    async def create(self) -> None:
        await self._fence.create()
        await self._inbox.create()

    def forget(self) -> None:
        """Forget what was sent."""
        self._kafka.sent.clear()

    async def commits(self) -> None:
        async with self._client.begin() as tx:
            await tx.send_all([MESSAGE, MESSAGE])
            await tx.commit(wait=True)

    async def sends_nothing(self) -> None:
        with suppress(InvalidMessageError):
            async with self._client.begin() as tx:
                await tx.send(TOO_LARGE)

    async def is_cancelled(self) -> None:
        sending = asyncio.ensure_future(self.commits())
        await asyncio.sleep(0)
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending

    async def blocks(self) -> None:
        async with self._fence.async_transaction(self._client) as (tx, connection):
            await tx.send(MESSAGE)
            await connection.execute(WORK)

    async def blocks_with_session(self) -> None:
        block = self._fence.async_transaction(self._client, session_factory=self._sessions)
        async with block as (tx, session):
            await tx.send(MESSAGE)
            await session.execute(WORK)

    async def block_fails(self) -> None:
        with suppress(BrokenError):
            async with self._fence.async_transaction(self._client) as (tx, connection):
                await tx.send(MESSAGE)
                await connection.execute(WORK)
                raise BrokenError

    async def takes_once(self) -> None:
        async with self._engine.begin() as begun:
            assert await self._inbox.once(begun, delivered(new_id()))


def _paths(service: type) -> list[Any]:
    beside = {"create", "forget"}
    return [
        pytest.param(service, path, id=f"{service.__name__}.{name}")
        for name, path in vars(service).items()
        if not name.startswith("_") and name not in beside
    ]


@pytest.mark.parametrize(("kind", "path"), [*_paths(Service), *_paths(AsyncService)])
def test_a_transaction_leaves_nothing_behind(
    tmp_path: Path, kind: type[Service | AsyncService], path: Callable[[Any], Any]
) -> None:
    """It keeps no object, and makes no reference cycle."""

    async def measured() -> tuple[int, int]:
        async with service_on(kind, tmp_path) as service:

            async def work(transactions: int) -> None:
                for _ in range(transactions):
                    waits: Awaitable[None] | None = path(service)
                    if waits is not None:
                        await waits
                    service.forget()

            await work(FIRST)
            return await _left_by(work)

    kept, in_cycles = asyncio.run(measured())
    assert (kept < COUNTED // 2, in_cycles // COUNTED) == (True, 0), (kept, in_cycles)


async def _left_by(work: Callable[[int], Awaitable[None]]) -> tuple[int, int]:
    """Return how many objects COUNTED transactions keep, and how many they leave in cycles."""
    gc.collect()
    before = _objects()
    gc.disable()
    try:
        await work(COUNTED)
        in_cycles = gc.collect()
    finally:
        gc.enable()
    return _objects() - before, in_cycles


def _objects() -> int:
    """Count objects, without the dead references to cursors of which sqlite3 keeps 200."""
    return sum(type(each) is not ref for each in gc.get_objects())


@asynccontextmanager
async def service_on(kind: type[Any], directory: Path) -> AsyncIterator[Any]:
    """Yield a service on a new SQLite database."""
    with closing(sqlite_database(directory)) as database:
        if kind is Service:
            yield Service(database.engine())
            return
        engine = create_async_engine(make_url(database.url).set(drivername="sqlite+aiosqlite"))
        try:
            service = AsyncService(engine)
            await service.create()
            yield service
        finally:
            await engine.dispose()
