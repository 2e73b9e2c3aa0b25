"""Blocks on asyncio whose task is cancelled, at each of their waits in turn. No Kafka."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from halfbridge.bridge import Answer, NoAnswerError, OutcomeUnknownError, Resolution
from halfbridge.sql import AsyncInbox, CommitUnknownError
from tests.sql.async_fence_scene import (
    GROUP,
    AsyncScene,
    cancelled_at,
    on_drivers,
    others_end,
    run,
    scene_on,
)
from tests.sql.databases import Database

ASKED_MAX = 10  # checks; each waits 2 s for the row
WAITS_MAX = 200  # per block, which has about 30


async def ending(scene: AsyncScene, number: int, **given: Any) -> BaseException | None:
    """Run a block that is cancelled at its wait `number`; return how it ended."""
    is_session, is_repeated = given["is_session"], given["is_repeated"]
    running = cancelled_at(
        scene.order(number, is_session=is_session), number, is_repeated=is_repeated
    )
    try:
        await asyncio.ensure_future(running)
    except (asyncio.CancelledError, OutcomeUnknownError) as error:
        return error
    finally:
        await others_end()
    return None


async def agree(scene: AsyncScene, number: int, ended: BaseException | None) -> None:
    """Check that error, work, row, decision and the answer of a check agree."""
    if len(scene.ids) < number:
        assert number not in scene.worked()  # cancelled before it began
        return
    tx_id = scene.ids[number - 1]
    answer = await answered(scene, tx_id)  # first: a COMMIT may still be on its way
    stands = number in scene.worked()
    if ended is None or isinstance(ended, asyncio.CancelledError):
        assert stands is (ended is None)
    decided = scene.decisions(tx_id)
    assert decided in ([], [("COMMIT", 2)] if stands else [("ROLLBACK", 1)], [("ROLLBACK", 2)])
    assert not (stands and decided == [("ROLLBACK", 2)])
    assert answer.resolution is (Resolution.COMMIT if stands else Resolution.ROLLBACK)
    assert scene.fenced(tx_id) == (("committed", 2) if stands else ("rolled_back", 0))


async def answered(scene: AsyncScene, tx_id: str) -> Answer:
    """Return the answer of a check; repeat it while the server still ends a connection."""
    for _ in range(ASKED_MAX):
        with suppress(NoAnswerError):
            return await scene.fence.check(await scene.view(tx_id))
    pytest.fail("no answer")


@on_drivers()
@pytest.mark.parametrize(
    ("is_session", "is_repeated"),
    [(True, False), pytest.param(False, True, marks=pytest.mark.long)],
)
def test_cancelled_at_each_wait(
    database: Database, driver: str, is_session: bool, is_repeated: bool
) -> None:
    """CancelledError means that nothing is committed; a block in doubt raises OutcomeUnknownError.

    No task or connection is left open, however often the task is cancelled.
    """
    seen: Counter[type[BaseException]] = Counter()

    async def main() -> None:
        async with scene_on(database, driver, decisions="acknowledged") as scene:
            for number in range(1, WAITS_MAX):
                while len(scene.ids) < number - 1:
                    scene.ids.append("")
                ended = await ending(scene, number, is_session=is_session, is_repeated=is_repeated)
                await agree(scene, number, ended)
                if ended is None:
                    return
                seen[type(ended)] += 1

    run(main)
    assert set(seen) == {asyncio.CancelledError, CommitUnknownError, OutcomeUnknownError}
    assert seen[asyncio.CancelledError] > seen[CommitUnknownError]


async def cancelled_at_each_wait(call: Callable[[int], Coroutine[Any, Any, Any]]) -> Any:
    """Make a call that is cancelled at its wait 1, 2, and so on; return what the last returns."""
    for number in range(1, WAITS_MAX):
        with suppress(asyncio.CancelledError):
            returned = await asyncio.ensure_future(call(number))
            assert number > 1
            return returned
        await others_end()
    pytest.fail("it does not end")


async def result_at(running: Coroutine[Any, Any, Any], number: int) -> Any:
    """Run a coroutine whose task is cancelled at this wait; return its result."""
    found = []

    async def note() -> None:
        found.append(await running)

    await cancelled_at(note(), number)
    return found[0]


@on_drivers()
def test_a_cancelled_check_gives_no_answer_and_the_next_one_does(
    database: Database, driver: str
) -> None:
    """`fence.check` of a committed transaction, cancelled at each wait, leaves the row."""

    async def main() -> None:
        async with scene_on(database, driver, decisions="acknowledged") as scene:
            await scene.order(1)
            view = await scene.view(scene.ids[0])
            answer = await cancelled_at_each_wait(
                lambda number: result_at(scene.fence.check(view), number)
            )
            assert answer.resolution is Resolution.COMMIT
            assert scene.fenced(scene.ids[0]) == ("committed", 2)

    run(main)


@on_drivers()
def test_a_cancelled_once_leaves_no_mark(database: Database, driver: str) -> None:
    """Its transaction is rolled back, and the message is new again, at each wait of `once`."""

    async def main() -> None:
        async with scene_on(database, driver) as scene:
            inbox = AsyncInbox(scene.engine, group_id=GROUP)
            await inbox.create()

            async def take(number: int) -> Any:
                async with scene.engine.begin() as connection:
                    return await result_at(inbox.once(connection, None, key="k"), number)

            assert await cancelled_at_each_wait(take) is True
            assert await take(WAITS_MAX) is False

    run(main)
