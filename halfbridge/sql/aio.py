"""AsyncFence and AsyncInbox: the fence and the inbox for SQLAlchemy's AsyncEngine.

A shell around Fence and Inbox, whose code runs in SQLAlchemy's greenlets, as `run_sync` runs it. So
there is one copy of the block. What waits for Kafka is awaited by the asyncio client.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.util import await_only, greenlet_spawn

from halfbridge.kafka.errors import ConfigError, OutcomeUnknownError
from halfbridge.sql.errors import FenceUsageError, InboxUsageError
from halfbridge.sql.fence import Block, Fence
from halfbridge.sql.fence_purge import DEAD_LETTER_RETENTION_MS, TRANSACTION_AGE_MS_MAX
from halfbridge.sql.fence_table import DEFAULT_NAME
from halfbridge.sql.inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy import Engine

    from halfbridge.bridge import Answer, AsyncTransaction, AsyncTransactionProducer, MessageView
    from halfbridge.sql.errors import SqlError
    from halfbridge.sql.fence_purge import PurgeResult
    from halfbridge.sql.inbox import Marks

    Handle = AsyncConnection | AsyncSession


class AsyncFence:
    """Ties message transactions to local transactions by a row in the same database; for asyncio.

    As Fence, which documents rows, errors and guarantees; for the tasks of one event loop.

    Args:
        engine: SQLAlchemy AsyncEngine for the database of the local transactions.
        producer_group: The producer's group.
        name: Name of the table.
        schema: Schema of the table; None: the connection's default schema.

    Attributes:
        engine: For checks and for blocks without a session.
        metadata: The table for Alembic's `target_metadata`; call `create` after the migration.
        tables: The tables that the fence needs.

    Raises:
        ConfigError: A blocking engine, or one for another kind of database; give another engine.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        producer_group: str,
        name: str = DEFAULT_NAME,
        schema: str | None = None,
    ) -> None:
        below = _engine_below(engine, "Fence")
        self._fence = Fence(below, producer_group=producer_group, name=name, schema=schema)
        self.engine = engine
        self.producer_group = producer_group
        self.metadata = self._fence.metadata
        self.tables = self._fence.tables

    async def create(self) -> None:
        """Create the table and its own rows if they do not exist; as Fence.create."""
        await greenlet_spawn(self._fence.create)

    async def context(self) -> bytes:
        """Return the value for `producer.begin(context=...)`; as Fence.context."""
        return await greenlet_spawn(self._fence.context)

    @overload
    def async_transaction(
        self,
        producer: AsyncTransactionProducer,
        *,
        immunity_ms: int | None = None,
        allow_empty: bool = False,
    ) -> AbstractAsyncContextManager[tuple[AsyncTransaction, AsyncConnection]]: ...

    @overload
    def async_transaction(
        self,
        producer: AsyncTransactionProducer,
        *,
        session_factory: Callable[[], AsyncSession],
        immunity_ms: int | None = None,
        allow_empty: bool = False,
    ) -> AbstractAsyncContextManager[tuple[AsyncTransaction, AsyncSession]]: ...

    def async_transaction(
        self,
        producer: AsyncTransactionProducer,
        *,
        session_factory: Callable[[], AsyncSession] | None = None,
        immunity_ms: int | None = None,
        allow_empty: bool = False,
    ) -> AbstractAsyncContextManager[tuple[AsyncTransaction, Handle]]:
        """Return a block that commits work in the database, and then its messages.

        As Fence.transaction, with its arguments, cases and errors; `session_factory` is an
        async_sessionmaker, for example. A cancelled block ends as after an exception: it rolls both
        transactions back, and then raises CancelledError. A second cancellation does not wait for
        that. Only two cancellations have another error, because the work may be committed:

        - in the database's COMMIT: CommitUnknownError; the check decides.
        - after it: OutcomeUnknownError; the messages are committed, if not now then by a check.

        Raises ConfigError: a blocking producer; the caller gives an AsyncTransactionProducer.
        """
        if not iscoroutinefunction(producer.start):
            raise ConfigError(
                field="producer",
                value=type(producer).__name__,
                origin="argument",
                allowed="an AsyncTransactionProducer; a blocking one goes with Fence",
            )
        self._fence.check_config(producer.config)
        return _in_greenlets(
            self._block(producer, session_factory, immunity_ms=immunity_ms, allow_empty=allow_empty)
        )

    async def enter(self, connection: Handle, tx: AsyncTransaction) -> None:
        """Write the fence row into the open database transaction; as Fence.enter."""
        await greenlet_spawn(self._fence.enter, _below(connection, FenceUsageError), tx.blocking)

    async def check(self, view: MessageView) -> Answer:
        """Answer a check; to be used as the producer's checker. As Fence.check."""
        return await greenlet_spawn(self._fence.check, view)

    async def roll_back(self, transaction_id: str) -> bool:
        """Prevent a local transaction from committing; as Fence.roll_back."""
        return await greenlet_spawn(self._fence.roll_back, transaction_id)

    async def purge(
        self,
        *,
        transaction_age_ms_max: int = TRANSACTION_AGE_MS_MAX,
        dead_letter_retention_ms: int = DEAD_LETTER_RETENTION_MS,
        older_than_ms: int | None = None,
    ) -> PurgeResult:
        """Delete the rows of all groups that no check needs any more; as Fence.purge."""
        return await greenlet_spawn(
            self._fence.purge,
            transaction_age_ms_max=transaction_age_ms_max,
            dead_letter_retention_ms=dead_letter_retention_ms,
            older_than_ms=older_than_ms,
        )

    @contextmanager
    def _block(
        self,
        producer: AsyncTransactionProducer,
        session_factory: Callable[[], AsyncSession] | None,
        *,
        immunity_ms: int | None,
        allow_empty: bool,
    ) -> Iterator[tuple[AsyncTransaction, Handle]]:
        """Yield a message transaction, and a connection or session; to be run in greenlets."""
        session = None if session_factory is None else session_factory()
        if session is not None:
            self._fence.check_new(_below(session, FenceUsageError))
        tx = producer.begin(immunity_ms=immunity_ms, context=self._fence.context())
        handle = session or self.engine.connect()
        if isinstance(handle, AsyncConnection):
            await_only(handle.start())
        block = _AsyncBlock(
            self._fence,
            tx.blocking,
            _below(handle, FenceUsageError),
            messages=_Messages(tx),
            allows_empty=allow_empty,
        )
        with block.running():
            yield tx, handle


class _Messages:
    """The message transaction of a block that runs in a greenlet."""

    def __init__(self, tx: AsyncTransaction) -> None:
        self._tx = tx

    def end_sends(self) -> int:
        return await_only(self._tx.end_sends())

    def is_unanswered(self) -> bool:
        return await_only(self._tx.is_unanswered())

    def commit(self) -> object:
        return await_only(self._tx.commit())

    def rollback(self) -> object:
        return await_only(self._tx.rollback())


class _AsyncBlock(Block):
    """A block whose end cannot be cancelled, except before COMMIT."""

    def _abandon(self, error: BaseException) -> None:
        with suppress(asyncio.CancelledError):  # the block raises `error`, which says more
            _to_the_end(super()._abandon, error)

    def _finish(self) -> None:
        try:
            _to_the_end(super()._finish)
        except asyncio.CancelledError as error:
            raise OutcomeUnknownError(
                f"the block of {self._tx.id} was cancelled after the database's COMMIT: do not"
                " repeat the work; its messages are committed now, or by a check",
                transaction_id=self._tx.id,
            ) from error


class AsyncInbox:
    """Marks messages as taken, in the database transaction that does the work; for asyncio.

    As Inbox, which documents arguments and errors.

    Args:
        engine: SQLAlchemy AsyncEngine for the database of the work.
        group_id: The consumer group. Each group takes each message once.
        name: Name of the table.
        schema: Schema of the table; None: the connection's default schema.

    Attributes:
        metadata: Contains only the table, for Alembic.
        table: The table.

    Raises:
        ConfigError: A blocking engine, or a name that cannot be; the caller gives another one.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        group_id: str,
        name: str = "halfbridge_inbox",
        schema: str | None = None,
    ) -> None:
        below = _engine_below(engine, "Inbox")
        self._inbox = Inbox(below, group_id=group_id, name=name, schema=schema)
        self.metadata = self._inbox.metadata
        self.table = self._inbox.table

    async def create(self) -> None:
        """Create the table if it does not exist; as Inbox.create."""
        await greenlet_spawn(self._inbox.create)

    async def once(
        self,
        connection: Handle | async_scoped_session[Any],
        message: Any,
        key: str | None = None,
    ) -> bool:
        """Mark a message as taken; return False if this group has taken the message before.

        As Inbox.once. Cancelled: roll the database transaction back, and take the message again.
        """
        below = _below(connection, InboxUsageError)
        return await greenlet_spawn(self._inbox.once, below, message, key)

    async def purge(self, **given: Any) -> int:
        """Delete the group's old marks; return how many were deleted. As Inbox.purge.

        With `topics` it asks the brokers, which blocks the loop: give `retention_ms` in a service.
        """
        return await greenlet_spawn(self._inbox.purge, **given)

    async def show(self) -> tuple[Marks, ...]:
        """Return the marks of all groups; as Inbox.show."""
        return await greenlet_spawn(self._inbox.show)


@asynccontextmanager
async def _in_greenlets(manager: Any) -> AsyncIterator[Any]:
    """Run the two ends of a blocking context manager in greenlets."""
    value = await greenlet_spawn(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        await greenlet_spawn(manager.__exit__, type(error), error, error.__traceback__)
        raise
    await greenlet_spawn(manager.__exit__, None, None, None)


def _to_the_end(work: Callable[..., None], *args: object) -> None:
    """Run `work` in a task of its own, which a cancellation of this task does not end."""
    await_only(asyncio.shield(asyncio.ensure_future(greenlet_spawn(work, *args))))


def _engine_below(given: AsyncEngine, instead: str) -> Engine:
    if not isinstance(given, AsyncEngine):
        raise ConfigError(
            field="engine",
            value=type(given).__name__,
            origin="the call",
            allowed=f"SQLAlchemy's AsyncEngine, of create_async_engine(); a blocking engine goes"
            f" with {instead}",
        )
    return given.sync_engine


def _below(given: Any, usage_error: type[SqlError]) -> Any:
    """Return SQLAlchemy's Connection or Session below an asynchronous one."""
    if isinstance(given, async_scoped_session):
        given = given()
    if isinstance(given, AsyncSession):
        return given.sync_session
    if isinstance(given, AsyncConnection):
        return given.sync_connection
    raise usage_error(
        f"{type(given).__name__}: give an AsyncConnection or AsyncSession of SQLAlchemy; blocking"
        " ones go with the classes without Async"
    )
