"""fence.check and purge: the answers, and the cases without one."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text, update

from halfbridge.bridge import Answer, NoAnswerError, Resolution
from halfbridge.serde.avro import SINK_CONTEXT
from halfbridge.serde.records import SinkContext
from halfbridge.sql import Fence, FencedError, TableError
from halfbridge.sql.fence_purge import needed_ms
from halfbridge.sql.fence_table import CLOCK_MARGIN_MS
from tests.integration.producing import GROUP
from tests.sql.databases import Database, OwnDatabase
from tests.sql.fence_scene import Scene, new_id, on

JOIN_S_MAX = 30.0
DAY_MS = 86_400_000
KEPT_MS = 33 * DAY_MS
SINK = SINK_CONTEXT.encode(SinkContext("app", 1, "0" * 32))


@pytest.fixture
def scene(database: Database) -> Scene:
    """A service on one database, without Kafka."""
    return Scene(database)


@pytest.mark.feature
def test_no_row_is_proof(scene: Scene) -> None:
    """The check rolls back for good: a later `enter` is refused."""
    mine = new_id()
    assert scene.fence.check(scene.view(mine)).resolution is Resolution.ROLLBACK
    assert scene.fenced(mine) == ("rolled_back", 0)
    with pytest.raises(FencedError):
        scene.commit(mine)
    assert scene.fence.check(scene.view(mine)).resolution is Resolution.ROLLBACK


@pytest.mark.feature
def test_a_check_of_committed_work_returns_its_count(scene: Scene) -> None:
    """The answer COMMIT has the number of messages; a repeated check has the same answer."""
    mine = new_id()
    scene.commit(mine, message_count=3)
    for _ in range(2):
        answer = scene.fence.check(scene.view(mine))
        assert (answer.resolution, answer.message_count) == (Resolution.COMMIT, 3)
    assert scene.fence.roll_back(mine) is False


def _refuse(*_: object) -> None:
    raise ConnectionRefusedError("no database listens")


@on("sqlite")
def test_a_driver_whose_errors_are_the_systems(scene: Scene) -> None:
    """Asyncpg raises OSError where it cannot connect: there is no answer, and no other error."""
    scene.fence.context()  # the table's id is known
    event.listen(scene.engine, "do_connect", _refuse)
    scene.engine.dispose()
    with pytest.raises(NoAnswerError, match="no database listens"):
        scene.fence.check(scene.view(new_id()))


@pytest.mark.feature
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_check_waits_for_a_transaction_in_flight(scene: Scene, is_committed: bool) -> None:
    """The check waits for the row's key, then answers how the transaction ended."""
    mine = new_id()
    asked = threading.Event()

    @event.listens_for(scene.engine, "before_cursor_execute")
    def _(*given: Any) -> None:
        if "INSERT" in given[2] and threading.current_thread() is not threading.main_thread():
            asked.set()

    with ThreadPoolExecutor(1) as pool:
        with scene.in_flight(mine) as connection:
            answer = pool.submit(scene.fence.check, scene.view(mine))
            if scene.database.name != "sqlite":  # whose check waits at BEGIN
                assert asked.wait(JOIN_S_MAX)
            assert not answer.done()
            if is_committed:
                connection.commit()
            else:
                connection.rollback()
        expected = Resolution.COMMIT if is_committed else Resolution.ROLLBACK
        assert answer.result(JOIN_S_MAX).resolution is expected


@pytest.mark.feature
def test_a_check_that_waits_learns_the_number_written_last(scene: Scene) -> None:
    """A transaction updates its row while a check waits; the check answers the last number."""
    mine = new_id()
    asked = threading.Event()

    @event.listens_for(scene.engine, "before_cursor_execute")
    def _(*given: Any) -> None:
        if threading.current_thread() is not threading.main_thread() and given[2].startswith(
            ("INSERT", "BEGIN")  # SQLite's writers wait where they begin
        ):
            asked.set()

    with ThreadPoolExecutor(1) as pool, scene.in_flight(mine, message_count=0) as connection:
        answer = pool.submit(scene.fence.check, scene.view(mine))
        assert asked.wait(JOIN_S_MAX)
        for number in (1, 3):
            assert scene.count(connection, mine, number)
        assert not answer.done()
        connection.commit()
        found = answer.result(JOIN_S_MAX)
    assert (found.resolution, found.message_count) == (Resolution.COMMIT, 3)


def test_a_number_goes_only_into_the_row_of_the_open_transaction(scene: Scene) -> None:
    """No number is written into a row that was rolled back, or that a check has written."""
    gone, refused = new_id(), new_id()
    with scene.in_flight(gone) as connection:
        connection.rollback()
        scene.fence.database.begin(connection)
        assert not scene.count(connection, gone, 2)
    scene.fence.roll_back(refused)
    with scene.engine.connect() as connection:
        assert not scene.count(connection, refused, 2)
    assert scene.fenced(refused) == ("rolled_back", 0)


def test_a_row_without_a_number_gives_no_answer(scene: Scene) -> None:
    """NoAnswerError: a statement committed by itself before the messages were counted."""
    mine = new_id()
    scene.commit(mine, message_count=0)
    with pytest.raises(NoAnswerError, match="committed inside its block"):
        scene.fence.check(scene.view(mine))
    assert scene.fence.roll_back(mine) is False


def test_a_transaction_that_stays_in_flight_gives_no_answer(scene: Scene) -> None:
    """It is neither UNKNOWN, of which fifteen make a dead letter, nor ROLLBACK."""
    mine = new_id()
    with ThreadPoolExecutor(1) as pool, scene.in_flight(mine) as connection:
        with pytest.raises(NoAnswerError, match=r"(?i)lock"):
            pool.submit(scene.fence.check, scene.view(mine)).result(JOIN_S_MAX)
        connection.commit()
    assert scene.fence.check(scene.view(mine)).resolution is Resolution.COMMIT


class _Order:
    """Has one thread write the fence row first, and hold it until another one asks for the key.

    Threads call `play` with their part; a part that is not `first` runs nothing before that.
    """

    def __init__(self, scene: Scene) -> None:
        self._part = threading.local()
        self.begin(None)
        self._barrier = threading.Barrier(3, timeout=JOIN_S_MAX)
        event.listen(scene.engine, "before_cursor_execute", self._before)
        event.listen(scene.engine, "after_cursor_execute", self._after)
        event.listen(scene.engine, "commit", self._on_commit)

    def begin(self, first: str | None) -> None:
        """Begin another round; None lets the threads race."""
        self._first = first
        self._is_written, self._is_met = threading.Event(), threading.Event()

    def play(self, part: str, run: Callable[[], Any]) -> Any:
        """Run one of three parts, as a thread of its own."""
        self._barrier.wait()
        self._part.name = part
        if self._first not in (None, part):
            assert self._is_written.wait(JOIN_S_MAX)
        return run()

    def _is_first(self) -> bool:
        return self._first is not None and getattr(self._part, "name", "") == self._first

    def _before(self, *given: Any) -> None:
        # SQLite's writers wait where they begin.
        if not self._is_first() and given[2].startswith(("INSERT", "BEGIN")):
            self._is_met.set()

    def _after(self, *given: Any) -> None:
        if self._is_first() and given[2].startswith("INSERT"):
            self._is_written.set()

    def _on_commit(self, _: object) -> None:
        if self._is_first():
            assert self._is_met.wait(JOIN_S_MAX)


def test_checks_and_local_transactions_race(scene: Scene) -> None:
    """Whichever thread is first, each transaction has one outcome, which all checks answer.

    The first thread commits when another thread is about to meet its row. Both outcomes occur.
    """

    def enter() -> bool:
        try:
            scene.commit(mine)
        except FencedError:
            return False
        return True

    ends, order = [], _Order(scene)
    orders: list[str | None] = ["enter", "check", None] * 4
    with ThreadPoolExecutor(3) as pool:
        for first in orders:
            mine = new_id()
            order.begin(first)
            check = partial(scene.fence.check, scene.view(mine))
            checks = [pool.submit(order.play, part, check) for part in ("check", "other check")]
            is_committed = pool.submit(order.play, "enter", enter).result(JOIN_S_MAX)
            answers = {each.result(JOIN_S_MAX).resolution for each in checks}
            assert answers == {Resolution.COMMIT if is_committed else Resolution.ROLLBACK}
            assert is_committed is (first == "enter") or first is None
            assert scene.fenced(mine) == (("committed", 1) if is_committed else ("rolled_back", 0))
            ends.append(is_committed)
    assert ends.count(True) >= 4
    assert ends.count(False) >= 4


@on("sqlite")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"context": None}, "without a fence"),
        ({"context": b"no context"}, "of no fence"),
        ({"context": SINK}, "of no fence"),
        ({"producer_group": "others"}, "of group"),
        ({"transaction_id": "0" * 32}, "no id"),
        ({"transaction_id": "x" * 3000}, "no id"),
    ],
)
def test_work_that_was_not_fenced_gets_no_answer(
    scene: Scene, given: dict[str, Any], message: str
) -> None:
    """A missing row proves nothing then, and none is written."""
    with pytest.raises(NoAnswerError, match=message):
        scene.fence.check(scene.view(**{"transaction_id": new_id(), **given}))
    assert scene.rows() == 0


def test_another_fences_work_gets_no_answer(scene: Scene) -> None:
    """The context names the table: here another one of the same database."""
    other = scene.fence_on(scene.engine, name="other_fence")
    other.create()
    mine = new_id()
    with pytest.raises(NoAnswerError, match="is fenced by table"):
        other.check(scene.view(mine))
    assert scene.fence.table_id() != other.table_id()
    assert scene.fenced(mine) is None


def test_a_table_that_was_made_anew_gives_no_answer(scene: Scene) -> None:
    """Its old rows are lost; a fence that remembers the old identity writes no row either."""
    mine = new_id()
    scene.commit(mine)
    scene.fence.metadata.drop_all(scene.truth)
    with pytest.raises(NoAnswerError):
        scene.fence.check(scene.view(mine))
    scene.fence_on(scene.truth).create()
    with pytest.raises(NoAnswerError, match="created again"):
        scene.fence.check(scene.view(mine))
    with pytest.raises(TableError, match="created again"):
        scene.commit(new_id())
    assert scene.rows() == 0


def test_a_table_that_another_process_made_anew_is_noticed(scene: Scene) -> None:
    """A fence that remembers the old identity answers for transactions begun under the new one."""
    old = scene.fence
    old.table_id()
    old.metadata.drop_all(scene.truth)
    scene.fence = scene.fence_on(scene.truth)
    scene.fence.create()
    mine = new_id()
    scene.commit(mine)
    assert old.check(scene.view(mine)).resolution is Resolution.COMMIT


def test_an_emptied_table_gives_no_answer(scene: Scene) -> None:
    """The table's own row is gone too, so no committed work is rolled back."""
    mine = new_id()
    scene.commit(mine)
    with scene.truth.begin() as connection:
        connection.execute(scene.fence.tables[0].delete())
    with pytest.raises(NoAnswerError, match="no row of its own"):
        scene.fence.check(scene.view(mine))
    assert scene.rows() == 0


READ_ONLY: dict[str, dict[str, Any]] = {
    "postgresql": {"connect_args": {"options": "-c default_transaction_read_only=on"}},
    "mariadb": {"connect_args": {"init_command": "SET SESSION TRANSACTION READ ONLY"}},
}
READ_ONLY["mysql"] = READ_ONLY["mariadb"]


def test_a_replica_that_takes_no_writes_gives_no_answer(scene: Scene) -> None:
    """It may be behind, and cannot keep the local transaction from committing."""
    mine = new_id()
    engine = scene.database.engine(**READ_ONLY.get(scene.database.name, {}))
    if scene.database.name == "sqlite":
        event.listen(engine, "connect", lambda each, _: each.execute("PRAGMA query_only = ON"))
    with pytest.raises(NoAnswerError, match=r"(?i)read.?only"):
        scene.fence_on(engine).check(scene.view(mine))
    assert scene.fenced(mine) is None


TROUBLE = {
    "postgresql": {"deadlock": "40P01", "serialization failure": "40001", "no space": "53100"},
    "mariadb": {"deadlock": "1213", "lock time-out": "1205", "changed row": "1020"},
    "mysql": {"deadlock": "1213", "lock time-out": "1205"},
}
_FUNCTION = (
    "CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION 'trouble' USING ERRCODE = '{}'; END $$"
)
_SIGNAL = (
    "CREATE TRIGGER t BEFORE INSERT ON halfbridge_fence FOR EACH ROW"
    " SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {}, MESSAGE_TEXT = 'trouble'"
)
_TRIGGERS = {
    "postgresql": [
        _FUNCTION,
        "CREATE TRIGGER t BEFORE INSERT ON halfbridge_fence EXECUTE FUNCTION trouble()",
    ],
    "mariadb": [_SIGNAL],
    "mysql": [_SIGNAL],
}


@pytest.mark.parametrize(
    ("database", "what"),
    [(name, what) for name, errors in TROUBLE.items() for what in errors],
    indirect=["database"],
)
def test_trouble_of_the_database_gives_no_answer(scene: Scene, what: str) -> None:
    """After a deadlock, time-out or similar error, the check raises NoAnswerError."""
    number = TROUBLE[scene.database.name][what]
    with scene.database.admin_engine().begin() as connection:
        for statement in _TRIGGERS[scene.database.name]:
            connection.execute(text(statement.format(number)))
    mine = new_id()
    with pytest.raises(NoAnswerError, match="trouble"):
        scene.fence.check(scene.view(mine))
    assert scene.fenced(mine) is None


@pytest.mark.parametrize("own_database", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_a_server_that_was_killed_gives_no_answer(own_database: OwnDatabase) -> None:
    """It answers again after the restart, by what it has committed."""
    scene = Scene(own_database)
    committed, begun = new_id(), new_id()
    scene.commit(committed)
    with scene.in_flight(begun):
        own_database.kill()
        with pytest.raises(NoAnswerError):
            scene.fence.check(scene.view(committed))
    own_database.restart()
    assert _asked_again(scene, committed).resolution is Resolution.COMMIT
    assert _asked_again(scene, begun).resolution is Resolution.ROLLBACK


def _asked_again(scene: Scene, transaction_id: str) -> Answer:
    """Repeat the check, as the daemon does: the pool has connections that the kill has ended."""
    for _ in range(9):
        with suppress(NoAnswerError):
            return scene.fence.check(scene.view(transaction_id))
    return scene.fence.check(scene.view(transaction_id))


def test_a_database_that_cannot_be_reached_gives_no_answer(scene: Scene, tmp_path: Path) -> None:
    """Also where the fence has not read the table's identity yet."""
    nowhere = {
        "sqlite": f"sqlite:///{tmp_path / 'missing' / 'nowhere.sqlite'}",
        "postgresql": "postgresql+psycopg://nobody@127.0.0.1:1/nowhere",
        "mariadb": "mariadb+pymysql://nobody@127.0.0.1:1/nowhere",
        "mysql": "mysql+pymysql://nobody@127.0.0.1:1/nowhere",
    }
    engine = create_engine(nowhere[scene.database.name])
    with pytest.raises(NoAnswerError):
        Fence(engine, producer_group=GROUP).check(scene.view(new_id()))


SETTINGS = {
    "sqlite": "PRAGMA busy_timeout",
    "postgresql": "SELECT current_setting('lock_timeout')"
    " || current_setting('transaction_isolation')",
    "mariadb": "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@tx_isolation,"
    " @@autocommit",
}
SETTINGS["mysql"] = SETTINGS["mariadb"].replace("tx_isolation", "transaction_isolation")


@pytest.mark.parametrize("isolation", [None, "SERIALIZABLE", "AUTOCOMMIT"])
def test_a_check_leaves_the_connection_as_it_was(database: Database, isolation: str | None) -> None:
    """A pool of one: time-outs and isolation of the user's engine hold again afterwards."""
    given = {} if isolation is None else {"isolation_level": isolation}
    scene = Scene(database, pool_size=1, max_overflow=0, pool_timeout=1, **given)
    query = text(SETTINGS[database.name])
    with database.engine(**given).connect() as fresh:
        before = fresh.execute(query).one()
    mine = new_id()
    for _ in range(2):
        assert scene.fence.check(scene.view(mine)).resolution is Resolution.ROLLBACK
    with scene.engine.connect() as connection:
        assert connection.execute(query).one() == before


@on("postgresql", "mariadb", "mysql")
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_answer_is_no_old_snapshot(database: Database, isolation: str) -> None:
    """The check reads the current row, at each isolation level of the engine."""
    scene = Scene(database, isolation_level=isolation)
    mine = new_id()
    scene.commit(mine, message_count=2)
    answer = scene.fence.check(scene.view(mine))
    assert (answer.resolution, answer.message_count) == (Resolution.COMMIT, 2)
    with pytest.raises(FencedError):
        scene.commit(mine)


def test_names_are_compared_byte_by_byte(scene: Scene) -> None:
    """Groups that differ in case only have rows of their own, also on MariaDB and MySQL."""
    mine = new_id()
    scene.commit(mine)
    other = Fence(scene.engine, producer_group=GROUP.upper())
    assert other.roll_back(mine) is True
    assert scene.fence.roll_back(mine) is False


@pytest.mark.parametrize(
    ("database", "engine"),
    [("mariadb", "Aria"), ("mariadb", "MyISAM"), ("mysql", "MyISAM")],
    indirect=["database"],
)
def test_a_table_without_transactions_is_refused(scene: Scene, engine: str) -> None:
    """Its row would stay after a rollback of the local transaction."""
    with scene.truth.begin() as connection:
        connection.execute(text(f"ALTER TABLE halfbridge_fence ENGINE={engine}"))
    fence = scene.fence_on(scene.engine)
    with pytest.raises(TableError, match=f"(?i)table of {engine}"):
        fence.context()
    with pytest.raises(TableError, match="ENGINE=InnoDB"):
        fence.create()
    with pytest.raises(NoAnswerError, match="has no transactions"):
        fence.check(scene.view(new_id()))


@pytest.mark.parametrize(
    ("age_days", "retention_days", "kept_days"), [(3, 30, 33), (40, 7, 80), (3, 0, 6)]
)
def test_how_long_rows_are_needed(age_days: int, retention_days: int, kept_days: int) -> None:
    """Twice the age of a transaction; or until a dead letter is gone, and one age more."""
    assert needed_ms(age_days * DAY_MS, retention_days * DAY_MS) == kept_days * DAY_MS


def _age(scene: Scene, transaction_id: str, age_ms: int) -> None:
    """Make a row older by `age_ms`."""
    table = scene.fence.tables[0]
    mine = table.c.transaction_id == transaction_id
    aged = update(table).where(mine).values(created_at_ms=table.c.created_at_ms - age_ms)
    with scene.truth.begin() as connection:
        connection.execute(aged)


@pytest.mark.feature
def test_a_purge_leaves_what_may_be_asked_for(scene: Scene) -> None:
    """A purge deletes rows of all groups whose id and creation time are both old."""
    old, young = new_id(KEPT_MS + 10_000), new_id(KEPT_MS - 10_000)
    late = new_id(KEPT_MS + 10_000)  # born long ago, by a clock that may be wrong; just written
    theirs = new_id(KEPT_MS + 10_000)
    for each in (old, young, late):
        scene.commit(each)
    Fence(scene.engine, producer_group="others").roll_back(theirs)
    for each in (old, young, theirs):
        _age(scene, each, KEPT_MS + 10_000)
    assert scene.fence.purge().rows == 2
    assert [scene.fenced(each) is None for each in (old, young, late, theirs)] == [
        True,
        False,
        False,
        True,
    ]
    assert scene.fence.purge().rows == 0


def test_a_purge_deletes_in_batches(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that stay do not stop it, nor hide later rows."""
    monkeypatch.setattr("halfbridge.sql.fence_purge._PURGE_BATCH", 2)
    names = [new_id(KEPT_MS + 10_000) for _ in range(7)]
    for number, each in enumerate(names):
        scene.commit(each)
        if number not in (0, 1, 4):
            _age(scene, each, KEPT_MS + 10_000)
    assert scene.fence.purge().rows == 4
    assert [scene.fenced(each) is None for each in names] == [
        number not in (0, 1, 4) for number in range(7)
    ]


def test_what_may_have_been_purged_gets_no_answer(scene: Scene) -> None:
    """A dead letter as old as purged rows is not rolled back when resumed; `enter` is refused."""
    committed, left = new_id(KEPT_MS + 10_000), new_id(KEPT_MS + 10_000)
    near = new_id(KEPT_MS - CLOCK_MARGIN_MS // 2)
    scene.commit(committed)
    scene.commit(left)
    _age(scene, committed, KEPT_MS + 10_000)
    scene.fence.purge()
    for each in (committed, near):
        with pytest.raises(NoAnswerError, match="were purged"):
            scene.fence.check(scene.view(each, resume_count=1))
        with pytest.raises(FencedError, match="as old as rows that were purged"):
            scene.commit(each)
        assert scene.fenced(each) is None
    assert scene.fence.check(scene.view(left)).resolution is Resolution.COMMIT
    young = new_id(KEPT_MS - 2 * CLOCK_MARGIN_MS)
    assert scene.fence.check(scene.view(young)).resolution is Resolution.ROLLBACK


@on("postgresql", "mariadb", "mysql")
def test_a_purge_between_a_checks_statements(scene: Scene) -> None:
    """The check reads the watermark after its insert, as its row may have been purged."""
    mine = new_id(KEPT_MS + 10_000)
    rival = scene.fence_on(scene.truth)
    rival.table_id()
    is_first = iter([True])

    @event.listens_for(scene.engine, "before_cursor_execute")
    def _(*given: Any) -> None:
        if "INSERT" in given[2] and next(is_first, False):
            rival.purge()

    with pytest.raises(NoAnswerError, match="were purged"):
        scene.fence.check(scene.view(mine))
    assert scene.fenced(mine) is None


@on("sqlite")
def test_a_purge_of_young_rows_is_refused(scene: Scene) -> None:
    """The watermark never goes back, though a later purge may keep more."""
    with pytest.raises(ValueError, match="rows are needed for"):
        scene.fence.purge(older_than_ms=KEPT_MS - 1)
    mine = new_id(10 * DAY_MS)
    scene.commit(mine)
    _age(scene, mine, 10 * DAY_MS)
    scene.fence.purge(dead_letter_retention_ms=20 * DAY_MS)
    before = _watermark(scene)
    scene.fence.purge()
    assert _watermark(scene) == before
    assert scene.fenced(mine) == ("committed", 1)


def _watermark(scene: Scene) -> int | None:
    with scene.truth.connect() as connection:
        return scene.fence._table.read_info(connection).purged_before_ms


def test_resume_of_a_dead_letter_has_the_answer_from_before(scene: Scene) -> None:
    """One that was rolled back is rolled back again; one that was committed is delivered."""
    for commits, expected in ((True, Resolution.COMMIT), (False, Resolution.ROLLBACK)):
        mine = new_id()
        if commits:
            scene.commit(mine)
        for count in range(3):
            assert scene.fence.check(scene.view(mine, resume_count=count)).resolution is expected


def test_a_table_is_made_once(scene: Scene) -> None:
    """Concurrent and repeated calls of `create` keep one table with one identity."""
    fences = [scene.fence_on(scene.database.engine(), name="another") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda fence: fence.create(), fences))
    for fence in fences:
        fence.create()
    assert len({fence.table_id() for fence in fences}) == 1


def test_a_missing_table_is_named(scene: Scene) -> None:
    """The error names the table and the call that creates it."""
    missing = scene.fence_on(scene.engine, name="missing")
    with pytest.raises(TableError, match=r"there is no table missing: fence\.create\(\)"):
        missing.context()


def test_a_table_that_a_migration_made_lacks_its_own_row(scene: Scene) -> None:
    """A migration tool makes the table from the metadata; `create` adds the row."""
    migrated = scene.fence_on(scene.engine, name="migrated")
    migrated.metadata.create_all(scene.truth)
    with pytest.raises(TableError, match="no row of its own"):
        migrated.context()
    migrated.create()
    assert len(migrated.table_id()) == 32
