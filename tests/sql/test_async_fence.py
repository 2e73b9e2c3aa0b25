"""AsyncFence and AsyncInbox: each way through a block, on each asyncio driver. No Kafka."""

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from halfbridge.bridge import (
    AsyncTransactionProducer,
    IllegalTransitionError,
    Resolution,
    TransactionProducer,
)
from halfbridge.kafka.errors import ConfigError, HalfNotStoredError, NoAnswerError
from halfbridge.sql import (
    AsyncFence,
    AsyncInbox,
    CommitUnknownError,
    Fence,
    FencedError,
    FenceUsageError,
    Inbox,
    InboxUsageError,
)
from tests.kit.waiting import CALL_S
from tests.sql.async_fence_scene import GROUP, MESSAGE, AsyncScene, on_drivers, run, scene_on, work
from tests.sql.databases import Database
from tests.sql.fence_scene import kill_session

WHO: ContextVar[str] = ContextVar("who", default="nobody")


def _refuse(*_: object) -> None:
    raise ConnectionRefusedError("no database listens")


class BrokenError(Exception):
    """An error that a block raises."""


def _run_on(database: Database, driver: str, main: Any, **settings: Any) -> None:
    async def scened() -> None:
        async with scene_on(database, driver, **settings) as scene:
            await main(scene)

    run(scened)


@pytest.mark.feature
@on_drivers()
@pytest.mark.parametrize("is_session", [False, True])
def test_database_and_messages_commit(database: Database, driver: str, is_session: bool) -> None:
    """After sends around a statement, row and op have their number; a check answers COMMIT."""

    async def main(scene: AsyncScene) -> None:
        await scene.order(1, is_session=is_session)
        (tx_id,) = scene.ids
        assert scene.worked() == [1]
        assert scene.fenced(tx_id) == ("committed", 2)
        assert scene.decisions(tx_id) == [("COMMIT", 2)]
        answer = await scene.fence.check(await scene.view(tx_id))
        assert (answer.resolution, answer.message_count) == (Resolution.COMMIT, 2)

    _run_on(database, driver, main)


@on_drivers()
def test_an_exception_rolls_both_back(database: Database, driver: str) -> None:
    """The block raises that exception, and the next block commits."""

    async def main(scene: AsyncScene) -> None:
        with pytest.raises(BrokenError):
            async with scene.block() as (tx, connection):
                await tx.send(MESSAGE)
                await work(connection, 1)
                raise BrokenError
        assert scene.worked() == []
        assert scene.fenced(tx.id) == ("rolled_back", 0)
        assert scene.decisions(tx.id) == [("ROLLBACK", 1)]
        await scene.order(2)
        assert scene.worked() == [2]

    _run_on(database, driver, main)


@on_drivers("sqlite")
def test_blocks_without_statements_or_messages(database: Database, driver: str) -> None:
    """Messages alone need allow_empty; statements alone are committed, without an op."""

    async def main(scene: AsyncScene) -> None:
        with pytest.raises(FenceUsageError, match="no statement ran on the block's connection"):
            async with scene.block() as (tx, _):
                await tx.send(MESSAGE)
        assert scene.decisions(tx.id) == [("ROLLBACK", 1)]
        async with scene.block(allow_empty=True) as (tx, _):
            await tx.send(MESSAGE)
        assert scene.decisions(tx.id) == [("COMMIT", 1)]
        async with scene.block() as (tx, connection):
            await work(connection, 1)
        async with scene.block() as (silent, _):
            pass
        assert scene.worked() == [1]
        assert scene.decisions(tx.id) == scene.decisions(silent.id) == []

    _run_on(database, driver, main)


@on_drivers()
def test_a_check_that_comes_first_fences_the_block(database: Database, driver: str) -> None:
    """Its answer is final: the first statement raises FencedError, and nothing is committed."""

    async def main(scene: AsyncScene) -> None:
        with pytest.raises(FencedError):
            async with scene.block() as (tx, connection):
                await tx.send(MESSAGE)
                answer = await scene.fence.check(await scene.view(tx.id))
                assert answer.resolution is Resolution.ROLLBACK
                await work(connection, 1)
        assert scene.worked() == []
        assert scene.decisions(tx.id) == [("ROLLBACK", 1)]

    _run_on(database, driver, main)


@on_drivers()
def test_a_check_that_meets_the_open_block_gets_no_answer(database: Database, driver: str) -> None:
    """The check waits for the row on another connection of the same loop: NoAnswerError."""

    async def main(scene: AsyncScene) -> None:
        async with scene.block() as (tx, connection):
            await work(connection, 1)
            await tx.send(MESSAGE)
            with pytest.raises(NoAnswerError):
                await scene.fence.check(await scene.view(tx.id))
        assert scene.decisions(tx.id) == [("COMMIT", 1)]

    _run_on(database, driver, main)


@on_drivers("postgresql")
def test_a_constraint_that_refuses_the_commit(database: Database, driver: str) -> None:
    """A deferred constraint fails at COMMIT for certain, so the messages are rolled back too."""

    async def main(scene: AsyncScene) -> None:
        async with scene.engine.begin() as connection:
            await connection.execute(text(_DEFERRED))
        with pytest.raises(IntegrityError):
            async with scene.block() as (tx, connection):
                await tx.send(MESSAGE)
                await connection.execute(text("INSERT INTO child VALUES (7)"))
        assert scene.decisions(tx.id) == [("ROLLBACK", 1)]

    _run_on(database, driver, main)


_DEFERRED = (
    "CREATE TABLE child (work INTEGER REFERENCES work (number) DEFERRABLE INITIALLY DEFERRED)"
)


@on_drivers("postgresql")
def test_a_connection_lost_at_the_commit_decides_nothing(database: Database, driver: str) -> None:
    """The block raises CommitUnknownError and sends no op; a check then answers ROLLBACK."""

    async def main(scene: AsyncScene) -> None:
        with pytest.raises(CommitUnknownError):
            async with scene.block() as (tx, connection):
                await tx.send(MESSAGE)
                await work(connection, 1)
                below = connection.sync_connection
                event.listen(below, "commit", lambda each: kill_session(database, each))
        assert scene.decisions(tx.id) == []
        answer = await scene.fence.check(await scene.view(tx.id))
        assert answer.resolution is Resolution.ROLLBACK
        assert scene.worked() == []

    _run_on(database, driver, main)


@on_drivers("sqlite")
def test_a_send_that_is_not_acknowledged(database: Database, driver: str) -> None:
    """The end of the block awaits it up to send_timeout_ms, then rolls back: HalfNotStoredError."""

    async def main(scene: AsyncScene) -> None:
        with pytest.raises(HalfNotStoredError):
            async with scene.block() as (tx, connection):
                await work(connection, 1)
                scene.kafka.is_silent = True
                sending = asyncio.ensure_future(tx.send(MESSAGE, timeout=60))
                while not tx.message_count:  # noqa: ASYNC110  (the send of another task)
                    await asyncio.sleep(0)
        assert scene.worked() == []
        assert scene.fenced(tx.id) == ("rolled_back", 0)
        assert scene.decisions(tx.id) == []
        sending.cancel()

    _run_on(database, driver, main, send_timeout_ms=200)


@on_drivers("sqlite")
@pytest.mark.parametrize("is_acked", [False, True])
def test_a_cancelled_send_that_is_swallowed(
    database: Database, driver: str, is_acked: bool
) -> None:
    """The block would lack a message, so it commits nothing."""

    async def main(scene: AsyncScene) -> None:
        with pytest.raises((FenceUsageError, HalfNotStoredError)):
            async with scene.block() as (tx, connection):
                await work(connection, 1)
                scene.kafka.is_silent = True
                sending = asyncio.ensure_future(tx.send(MESSAGE))
                while not tx.message_count:  # noqa: ASYNC110  (the send of another task)
                    await asyncio.sleep(0)
                scene.kafka.is_silent = False
                if is_acked:
                    scene.producer._shared.server.serve(0.0)
                sending.cancel()
                with suppress(asyncio.CancelledError):
                    await sending
        assert scene.worked() == []
        assert scene.fenced(tx.id) == ("rolled_back", 0)

    _run_on(database, driver, main)


@on_drivers("sqlite")
def test_a_cancelled_first_statement_that_is_swallowed(database: Database, driver: str) -> None:
    """The fence row may be missing, so the block commits nothing."""

    async def main(scene: AsyncScene) -> None:
        async with scene.block() as (_, other):
            await work(other, 1)  # holds the lock that the next block waits for
            with pytest.raises(FenceUsageError, match="let the cancellation end the block"):
                async with scene.block() as (tx, connection):
                    await tx.send(MESSAGE)
                    locked = scene.next_begin()
                    waiting = asyncio.ensure_future(work(connection, 2))
                    await asyncio.wait_for(locked.wait(), CALL_S)
                    waiting.cancel()
                    with suppress(asyncio.CancelledError):
                        await waiting
        assert scene.worked() == [1]
        answer = await scene.fence.check(await scene.view(tx.id))
        assert answer.resolution is Resolution.ROLLBACK

    _run_on(database, driver, main)


@on_drivers("sqlite", "postgresql")
def test_the_row_by_hand(database: Database, driver: str) -> None:
    """`enter` writes the row in the caller's own transaction, and not after `roll_back`."""

    async def main(scene: AsyncScene) -> None:
        tx = scene.producer.begin(context=await scene.fence.context())
        await tx.send(MESSAGE)
        async with scene.sessions.begin() as session:
            await scene.fence.enter(session, tx)
            await work(session, 1)
        await tx.commit()
        assert scene.worked() == [1]
        assert scene.fenced(tx.id) == ("committed", 1)
        assert scene.decisions(tx.id) == [("COMMIT", 1)]
        assert not await scene.fence.roll_back(tx.id)
        late = scene.producer.begin(context=await scene.fence.context())
        await late.send(MESSAGE)
        assert await scene.fence.roll_back(late.id)
        with pytest.raises(FencedError):
            async with scene.sessions.begin() as session:
                await scene.fence.enter(session, late)

    _run_on(database, driver, main)


@on_drivers("sqlite")
def test_context_variables_reach_all_that_runs(database: Database, driver: str) -> None:
    """Listeners of statements and of the commit see the context variables of the task."""
    seen: set[str] = set()

    async def main(scene: AsyncScene) -> None:
        below = scene.engine.sync_engine
        event.listen(below, "before_cursor_execute", lambda *_: seen.add(WHO.get()))
        event.listen(below, "commit", lambda *_: seen.add(f"commit of {WHO.get()}"))
        event.listen(below, "checkin", lambda *_: seen.add(f"return of {WHO.get()}"))
        WHO.set("customer")
        await scene.order(1)
        with suppress(BrokenError):
            async with scene.block() as (_, connection):
                await work(connection, 2)
                raise BrokenError

    _run_on(database, driver, main)
    assert {"customer", "commit of customer", "return of customer"} <= seen
    assert not {"commit of nobody", "return of nobody"} & seen


@on_drivers("sqlite")
def test_sessions_that_cannot_be_used(database: Database, driver: str) -> None:
    """A session that has begun, one in two blocks, and a blocking one: the error has the remedy."""

    async def main(scene: AsyncScene) -> None:
        begun = scene.sessions()
        await begun.execute(text("SELECT 1"))
        with pytest.raises(FenceUsageError, match="give a new session"):
            async with scene.fence.async_transaction(scene.producer, session_factory=lambda: begun):
                pass
        await begun.close()
        shared = scene.sessions()
        twice: Any = {"session_factory": lambda: shared}
        with pytest.raises(FenceUsageError, match="inside of another one"):
            async with (
                scene.fence.async_transaction(scene.producer, **twice),
                scene.fence.async_transaction(scene.producer, **twice) as (_, session),
            ):
                await work(session, 1)
        blocking: Any = sessionmaker(create_engine("sqlite://"))
        with pytest.raises(FenceUsageError, match="Session: give an AsyncConnection"):
            async with scene.fence.async_transaction(scene.producer, session_factory=blocking):
                pass
        assert scene.worked() == []

    _run_on(database, driver, main)


async def _never(_: object) -> Any:
    raise NotImplementedError


def test_what_is_blocking_and_what_is_not_do_not_mix(tmp_path: Path) -> None:
    """Each mismatch is refused where it is given, and the error names the matching class."""
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    asynchronous = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'x.db'}")
    given: Any = engine
    with pytest.raises(ConfigError, match="a blocking engine goes with Fence"):
        AsyncFence(given, producer_group=GROUP)
    with pytest.raises(ConfigError, match="a blocking engine goes with Inbox"):
        AsyncInbox(given, group_id=GROUP)
    given = asynchronous
    for make in (lambda: Fence(given, producer_group=GROUP), lambda: Inbox(given, group_id=GROUP)):
        with pytest.raises(ConfigError, match="take AsyncFence or AsyncInbox"):
            make()
    settings: Any = {"bootstrap_servers": "b:1", "producer_group": GROUP}
    blocking: Any = TransactionProducer(checker=lambda _: Resolution.UNKNOWN, **settings)
    fence = AsyncFence(asynchronous, producer_group=GROUP)
    with pytest.raises(ConfigError, match=r"an AsyncTransactionProducer; a blocking one goes with"):
        fence.async_transaction(blocking)
    loops: Any = AsyncTransactionProducer(checker=_never, **settings)
    below = Fence(engine, producer_group=GROUP)
    below.create()
    with pytest.raises(ConfigError, match="an asyncio one goes with AsyncFence"):
        below.transaction(loops)
    other: Any = AsyncTransactionProducer(checker=_never, **{**settings, "producer_group": "h"})
    with pytest.raises(ConfigError, match="producer_group"):
        fence.async_transaction(other)
    sessions: Any = async_sessionmaker(asynchronous)
    with (
        pytest.raises(FenceUsageError, match="AsyncSession: it goes with AsyncFence"),
        below.transaction(blocking, session_factory=sessions),
    ):
        pass
    engine.dispose()


@on_drivers()
def test_the_inbox_takes_a_message_once(database: Database, driver: str) -> None:
    """`once` works on a connection, a session, a scoped session, and in a block of the fence."""

    async def main(scene: AsyncScene) -> None:
        inbox = AsyncInbox(scene.engine, group_id="billing")
        await inbox.create()
        async with scene.engine.begin() as connection:
            assert await inbox.once(connection, None, key="a")
        async with scene.sessions.begin() as session:
            assert not await inbox.once(session, None, key="a")
            assert await inbox.once(session, None, key="b")
        registry = async_scoped_session(scene.sessions, asyncio.current_task)
        assert await inbox.once(registry, None, key="c")
        await registry.rollback()
        assert await inbox.once(registry, None, key="c")
        await registry.commit()
        await registry.remove()
        async with scene.block() as (tx, connection):
            assert await inbox.once(connection, None, key="d")
            await work(connection, 1)
            await tx.send(MESSAGE)
        async with scene.block() as (again, connection):
            assert not await inbox.once(connection, None, key="d")
        assert (scene.decisions(tx.id), scene.decisions(again.id)) == ([("COMMIT", 1)], [])
        (marks,) = await inbox.show()
        assert marks.count == 4
        assert await inbox.purge(older_than_ms=0, retention_ms=0) in range(5)
        given: Any = object()
        with pytest.raises(InboxUsageError, match="object: give an AsyncConnection"):
            await inbox.once(given, None, key="e")

    _run_on(database, driver, main)


@on_drivers("sqlite", "postgresql")
def test_tables_have_the_names_that_are_given(database: Database, driver: str) -> None:
    """A block, a check and a mark use these tables; on PostgreSQL they are in a schema."""

    async def main(scene: AsyncScene) -> None:
        schema = "messages" if database.name == "postgresql" else None
        if schema is not None:
            async with scene.engine.begin() as connection:
                await connection.execute(text(f"CREATE SCHEMA {schema}"))
        given: Any = {"name": "of the shop", "schema": schema}
        in_default, scene.fence = (
            scene.fence,
            AsyncFence(scene.engine, producer_group=GROUP, **given),
        )
        inbox = AsyncInbox(scene.engine, group_id="billing", **{**given, "name": "taken"})
        await scene.fence.create()
        await inbox.create()
        async with scene.block() as (tx, connection):
            assert await inbox.once(connection, None, key="a")
            await work(connection, 1)
            await tx.send(MESSAGE)
        assert scene.fenced(tx.id) == ("committed", 1)
        assert (await scene.fence.check(await scene.view(tx.id))).resolution is Resolution.COMMIT
        prefix = "" if schema is None else f"{schema}."
        names = [scene.fence.tables[0].fullname, inbox.table.fullname]
        assert names == [f"{prefix}of the shop", f"{prefix}taken"]
        scene.fence = in_default
        assert scene.fenced(tx.id) is None

    _run_on(database, driver, main)


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "asyncio-fence.md"


@on_drivers("sqlite", "postgresql")
def test_the_program_of_the_page(database: Database, driver: str) -> None:
    """docs/how-to/asyncio-fence.md runs with nothing replaced but the database and the group."""

    async def main(scene: AsyncScene) -> None:
        async with scene.engine.begin() as connection:
            key = "SERIAL" if database.name == "postgresql" else "INTEGER"
            query = f"CREATE TABLE placed (id {key} PRIMARY KEY, item TEXT)"
            await connection.execute(text(query))
        program = PAGE.read_text("utf-8").split("```python\n")[1].split("```")[0]
        url = scene.engine.url.render_as_string(hide_password=False)
        program = program.replace("postgresql+asyncpg://127.0.0.1:5432/shop", url)
        names: dict[str, Any] = {}
        exec(program.replace("order-service", GROUP), names)
        number = await names["place"](scene.producer, "two shirts")
        await names["engine"].dispose()
        (sent,) = [each for each in scene.kafka.sent if each.value == b"order %d" % number]
        assert sent.key == b"customer-42"
        async with scene.engine.connect() as connection:
            found = await connection.execute(text("SELECT id, item FROM placed"))
            assert found.all() == [(number, "two shirts")]

    _run_on(database, driver, main)


@on_drivers("sqlite")
def test_a_database_that_is_gone_hides_no_error(database: Database, driver: str) -> None:
    """The block asks on a second connection how it ended; a failure to connect is only logged."""

    async def main(scene: AsyncScene) -> None:
        with pytest.raises(BrokenError):
            async with scene.block() as (tx, connection):
                await tx.send(MESSAGE)
                await work(connection, 1)
                event.listen(scene.engine.sync_engine, "checkout", _refuse)
                raise BrokenError
        assert scene.decisions(tx.id) == []

    _run_on(database, driver, main)


@on_drivers("sqlite")
def test_after_a_block_that_failed_nothing_is_sent(database: Database, driver: str) -> None:
    """Also where the block itself had sent nothing."""

    async def main(scene: AsyncScene) -> None:
        with pytest.raises(BrokenError):
            async with scene.block() as (tx, _):
                raise BrokenError
        with pytest.raises(IllegalTransitionError):
            await tx.send(MESSAGE)

    _run_on(database, driver, main)


@on_drivers()
def test_a_purge_counts_the_rows_that_it_deletes(database: Database, driver: str) -> None:
    """With drivers that do not count the rows of several executions, too."""

    async def main(scene: AsyncScene) -> None:
        scene.write_old_rows(3)
        assert (await scene.fence.purge()).rows == 3
        assert (await scene.fence.purge()).rows == 0

    _run_on(database, driver, main)


@on_drivers("sqlite")
def test_a_purge_that_waits_for_a_lock_leaves_the_loop_free(
    database: Database, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pause between two tries is awaited."""
    monkeypatch.setattr("halfbridge.sql.dialects.sqlite.CHECK_WAIT_MS", 100)
    monkeypatch.setattr("halfbridge.sql.fence_purge.sleep", lambda _: pytest.fail("the loop waits"))

    async def main(scene: AsyncScene) -> None:
        scene.write_old_rows(1)
        with scene.locked() as release:
            purging = asyncio.create_task(scene.fence.purge())
            asyncio.get_running_loop().call_later(0.3, release)
            assert (await purging).rows == 1

    _run_on(database, driver, main)
