"""The asyncio half of an order service whose lanes are threads: client, engine, fence and inbox.

Each call of a lane is a task of the one loop, with the lane's context variables.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from halfbridge.bridge import (
    Answer,
    AsyncTransaction,
    AsyncTransactionProducer,
    Message,
    MessageView,
    NoAnswerError,
)
from halfbridge.sql import AsyncFence, AsyncInbox

_CALL_S_MAX = 120.0  # nothing that a lane awaits takes so long


class OnALoop:
    """A context manager: the client is started, and closed at the end.

    Args:
        url: Of the database, with any driver.
        driver: SQLAlchemy's name of the driver on asyncio, as "postgresql+asyncpg".
        producer_group: Of the client, and of fence and inbox.
        checker: Records the answers to checks.
        settings: Of the client.
    """

    def __init__(
        self, url: str, driver: str, producer_group: str, checker: Any, **settings: Any
    ) -> None:
        self._engine = create_async_engine(make_url(url).set(drivername=driver), pool_size=16)
        self._fence = AsyncFence(self._engine, producer_group=producer_group)
        self._inbox = AsyncInbox(self._engine, group_id=producer_group)
        self._checker = checker
        self._producer = AsyncTransactionProducer(
            checker=self._check, producer_group=producer_group, **settings
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def engine(self) -> Engine:
        """The synchronous engine, for listeners."""
        return self._engine.sync_engine

    def __enter__(self) -> None:
        self._thread.start()
        self._call(self._producer.start())

    def __exit__(self, *_: object) -> None:
        self._call(self._producer.close())
        self._call(self._engine.dispose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S_MAX)  # or it would run while the interpreter ends
        self._loop.close()

    @contextmanager
    def block(self) -> Iterator[tuple[Any, Any]]:
        """Yield transaction and connection of a block on the loop."""
        block = self._fence.async_transaction(self._producer)
        tx, connection = self._call(block.__aenter__())
        try:
            yield _Sending(self, tx), _Working(self, connection)
        except BaseException as error:
            self._call(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._call(block.__aexit__(None, None, None))

    def once(self, working: _Working, key: str) -> bool:
        """Take a message by the inbox, in the block's database transaction."""
        return bool(self._call(self._inbox.once(working.connection, None, key)))

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_S_MAX)

    async def _check(self, view: MessageView) -> Answer:
        try:
            answer = await self._fence.check(view)
        except NoAnswerError:
            self._checker.unanswered(view)
            raise
        self._checker.answering(view, answer)
        return answer


class _Sending:
    def __init__(self, loop: OnALoop, tx: AsyncTransaction) -> None:
        self._loop, self._tx = loop, tx
        self.id = tx.id

    def send(self, message: Message) -> None:
        self._loop._call(self._tx.send(message))


class _Working:
    def __init__(self, loop: OnALoop, connection: AsyncConnection) -> None:
        self._loop = loop
        self.connection = connection

    def execute(self, *given: Any) -> Any:
        return self._loop._call(self.connection.execute(*given))
