"""An operator's decisions by a fence, on each database."""

import pytest

from halfbridge.checker.admin.transactions.waits import Undecided
from halfbridge.checker.errors import AdminRequestError, AdminRetriableError
from halfbridge.serde.avro import FENCE_CONTEXT
from halfbridge.serde.records import FenceContext
from halfbridge.sql import FencedError
from halfbridge.sql.fence_table import OperatorFence
from tests.integration.producing import GROUP
from tests.kit.undecided import AN_UNDECIDED
from tests.sql.databases import Database
from tests.sql.fence_scene import Scene, new_id


@pytest.fixture
def scene(database: Database) -> Scene:
    """A service on one database, without Kafka."""
    return Scene(database)


def _undecided(transaction_id: str, messages: int = 1) -> Undecided:
    return AN_UNDECIDED._replace(id=transaction_id, producer_group=GROUP, messages=messages)


def _context(scene: Scene) -> bytes:
    return FENCE_CONTEXT.encode(FenceContext(scene.fence.table_id()))


def test_a_commit_takes_the_count_of_a_committed_row(scene: Scene) -> None:
    """It writes no row: without a row, or with a rolled_back row, it is refused."""
    fence, context = OperatorFence(scene.engine), _context(scene)
    committed, unknown, rolled_back = new_id(), new_id(), new_id()
    scene.commit(committed, message_count=3)
    fence.roll_back(_undecided(rolled_back), context)

    assert fence.committed_count(_undecided(committed, 3), context) == 3
    with pytest.raises(AdminRequestError, match=f"{unknown} has no row in"):
        fence.committed_count(_undecided(unknown), context)
    assert scene.fenced(unknown) is None
    with pytest.raises(AdminRequestError, match="says rolled_back: roll it back"):
        fence.committed_count(_undecided(rolled_back), context)


def test_a_commit_covers_what_was_sent_after_the_query(scene: Scene) -> None:
    """Else the op would have too low a half offset, and dead-letter committed messages."""
    fence, context, mine, uncounted = OperatorFence(scene.engine), _context(scene), *_ids(2)
    scene.commit(mine, message_count=3)
    with pytest.raises(
        AdminRetriableError, match="names 3 messages, and 2 were found: run the command"
    ):
        fence.committed_count(_undecided(mine, 2), context)
    scene.commit(uncounted, message_count=0)
    with pytest.raises(AdminRequestError, match="before its messages were counted"):
        fence.committed_count(_undecided(uncounted), context)


def _ids(count: int) -> list[str]:
    return [new_id() for _ in range(count)]


def test_a_rollback_stops_the_local_transaction(scene: Scene) -> None:
    """A rollback is final and repeatable; a committed transaction is not rolled back."""
    fence, context = OperatorFence(scene.engine), _context(scene)
    mine, committed = new_id(), new_id()
    for _ in range(2):
        fence.roll_back(_undecided(mine), context)
    assert scene.fenced(mine) == ("rolled_back", 0)
    with pytest.raises(FencedError):
        scene.commit(mine)
    scene.commit(committed)
    with pytest.raises(AdminRequestError, match="says committed"):
        fence.roll_back(_undecided(committed), context)
    assert scene.fenced(committed) == ("committed", 1)


def test_another_fences_transaction_is_refused(scene: Scene) -> None:
    """A row in the wrong database would contradict the right one."""
    fence, mine = OperatorFence(scene.engine), new_id()
    other = FENCE_CONTEXT.encode(FenceContext("0" * 32))
    for context, wanted in ((None, "begun without a fence"), (other, "is fenced by table 0000")):
        with pytest.raises(AdminRequestError, match=wanted):
            fence.roll_back(_undecided(mine), context)
    assert scene.fenced(mine) is None
