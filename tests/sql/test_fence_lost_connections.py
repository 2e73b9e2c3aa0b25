"""Connections under the fence that are cut, or fall into a black hole, at each step of a block."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from halfbridge.bridge import Message, NoAnswerError, Resolution
from halfbridge.sql import CommitUnknownError
from halfbridge.testkit.stack import HalfbridgeStack, OwnTopics
from tests.integration.producing import GROUP, Cluster
from tests.kit.proxy_tcp import Act
from tests.kit.waiting import until
from tests.sql.databases import ProxiedDatabase
from tests.sql.fence_scene import Scene, work

pytestmark = pytest.mark.broker

WAIT_S = 90.0
# PyMySQL gives up by itself; psycopg waits as long as the connection is open.
IMPATIENT: dict[str, dict[str, Any]] = {
    "postgresql": {"connect_timeout": 3},
    "mariadb": {"connect_timeout": 3, "read_timeout": 3, "write_timeout": 3},
}
IMPATIENT["mysql"] = IMPATIENT["mariadb"]
CHECK_TIMEOUT_MS = 4_000  # the minimum that the fence accepts
ENTER, MARK, COMMIT = "before enter", "before COMMIT", "at COMMIT"
NUMBER = "after a late send, before its number"
STEPS = pytest.mark.parametrize("step", [ENTER, MARK, NUMBER])


@pytest.fixture
def scene(proxied_database: ProxiedDatabase, cluster: Cluster, producer: Any) -> Scene:
    """A service behind the proxy; the test reads the database past the proxy."""
    return behind(proxied_database, cluster=cluster, producer=producer)


def behind(database: ProxiedDatabase, **given: Any) -> Scene:
    """Return a service whose connections pass the proxy."""
    options = {"connect_args": IMPATIENT[database.name], "pool_pre_ping": True}
    made = Scene(database, **given, **options)
    made.fence.table_id()
    made.truth = database.admin_engine()
    return made


def proxy_of(scene: Scene) -> Any:
    """Return the proxy in front of a scene's database."""
    return scene.database.proxy


def run_block(
    scene: Scene, step: str, fault: Callable[[], None], sent: list[str] | None = None
) -> tuple[str, Exception | None]:
    """Run a block that meets a fault at a step; return its id, also in `sent`, and its error."""
    name = ""
    try:
        with scene.fence.transaction(scene.producer) as (tx, connection):
            name = tx.id
            if step != NUMBER:
                tx.send(scene.message())
            if sent is not None:
                sent.append(name)
            if step == ENTER:
                fault()
            work(connection, 1)
            if step == COMMIT:
                event.listen(connection, "commit", lambda _: fault())  # after the mark is read
            if step == NUMBER:
                tx.send(scene.message())
            if step in (MARK, NUMBER):
                fault()
    except (DBAPIError, CommitUnknownError) as error:
        return name, error
    return name, None


def in_a_black_hole(
    scene: Scene,
    step: str,
    meanwhile: Callable[[], None] = lambda: None,
    sent: list[str] | None = None,
) -> tuple[str, Exception | None]:
    """Run a block that falls into a black hole at a step, until the hole is closed."""
    proxy, is_open = proxy_of(scene), Event()

    def fall() -> None:
        proxy.blackhole()
        is_open.set()  # the proxy's owner is for one thread at a time

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run_block, scene, step, fall, sent)
        assert is_open.wait(WAIT_S)
        try:
            until("something is lost", lambda: proxy.counts()["requests lost"] > 0, within_s=WAIT_S)
            meanwhile()
        finally:
            proxy.heal()
        return ended.result(WAIT_S)


def check_rolled_back(scene: Scene, name: str) -> None:
    """Check that the block itself has rolled back both transactions, for good."""
    assert scene.fenced(name) == ("rolled_back", 0)
    assert scene.decisions(name) == [("ROLLBACK", 1)]
    assert scene.worked() == []


def check_undecided(scene: Scene, name: str, resolution: Resolution) -> None:
    """Check that the block has decided nothing, and that a check answers by the committed work."""
    assert scene.decisions(name) == []
    answer = scene.fence.check(scene.view(name))
    assert answer.resolution is resolution
    is_committed = resolution is Resolution.COMMIT
    assert answer.message_count == (1 if is_committed else None)
    assert scene.worked() == ([1] if is_committed else [])


@STEPS
def test_a_connection_that_is_cut(scene: Scene, step: str) -> None:
    """The block writes rolled_back on a new connection, then sends the op ROLLBACK."""

    def cut() -> None:
        proxy_of(scene).cut()
        proxy_of(scene).heal()

    name, error = run_block(scene, step, cut)
    assert isinstance(error, DBAPIError)
    check_rolled_back(scene, name)


@STEPS
def test_a_database_that_is_cut_off(scene: Scene, step: str) -> None:
    """Nothing is decided, as the outcome is unknown; a check rolls back later."""
    name, error = run_block(scene, step, proxy_of(scene).cut)
    assert isinstance(error, DBAPIError)
    assert scene.fenced(name) is None
    proxy_of(scene).heal()
    check_undecided(scene, name, Resolution.ROLLBACK)


@STEPS
def test_a_connection_in_a_black_hole(scene: Scene, step: str) -> None:
    """Once it is reset, it is handled like any lost connection."""
    name, error = in_a_black_hole(scene, step)
    assert isinstance(error, DBAPIError)
    check_rolled_back(scene, name)


def test_a_black_hole_that_the_server_does_not_notice(scene: Scene) -> None:
    """The transaction stays in flight on the server: a check past the proxy gets no answer."""
    other = scene.fence_on(scene.database.admin_engine())
    sent: list[str] = []

    def ask() -> None:
        with pytest.raises(NoAnswerError, match=r"(?i)lock"):
            other.check(scene.view(sent[0]))

    name, error = in_a_black_hole(scene, MARK, ask, sent)
    assert isinstance(error, DBAPIError)
    check_rolled_back(scene, name)


@pytest.mark.parametrize("proxied_database", ["mariadb", "mysql"], indirect=True)
@STEPS
def test_a_driver_that_gives_up_in_a_black_hole(scene: Scene, step: str) -> None:
    """The block ends by its time-outs; the outcome is left to a check."""
    name, error = run_block(scene, step, proxy_of(scene).blackhole)
    assert isinstance(error, DBAPIError)
    assert scene.fenced(name) is None
    proxy_of(scene).heal()
    check_undecided(scene, name, Resolution.ROLLBACK)


@pytest.mark.parametrize(
    ("act", "resolution"), [(Act.STRAND, Resolution.COMMIT), (Act.REFUSE, Resolution.ROLLBACK)]
)
def test_a_commit_that_is_cut(scene: Scene, act: Act, resolution: Resolution) -> None:
    """CommitUnknownError, whether COMMIT arrived or not; the check finds the outcome."""
    proxy_of(scene).aim(act, scene.database.commit_text)
    name, error = run_block(scene, "", lambda: None)
    assert isinstance(error, CommitUnknownError)
    assert proxy_of(scene).hits(act) == 1
    check_undecided(scene, name, resolution)


def test_a_commit_whose_answer_falls_into_a_black_hole(scene: Scene) -> None:
    """It has arrived: the check commits."""
    proxy = proxy_of(scene)
    proxy.aim(Act.SWALLOW, scene.database.commit_text)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run_block, scene, "", lambda: None)
        until("COMMIT is hit", lambda: proxy.hits(Act.SWALLOW) == 1, within_s=WAIT_S)
        until("it is done", lambda: scene.worked() == [1], within_s=WAIT_S)
        proxy.heal()
        name, error = ended.result(WAIT_S)
    assert isinstance(error, CommitUnknownError)
    check_undecided(scene, name, Resolution.COMMIT)


def test_a_commit_that_falls_into_a_black_hole(scene: Scene) -> None:
    """It has not arrived: the check rolls back."""
    name, error = in_a_black_hole(scene, COMMIT)
    assert isinstance(error, CommitUnknownError)
    check_undecided(scene, name, Resolution.ROLLBACK)


def test_checks_in_a_black_hole_are_asked_again(
    proxied_database: ProxiedDatabase,
    halfbridge_stack: HalfbridgeStack,
    halfbridge_topics: OwnTopics,
) -> None:
    """A check that times out is repeated; committed work is delivered, other work is not."""
    topic, made = halfbridge_topics.create("orders"), behind(proxied_database)
    proxy = proxied_database.proxy
    with halfbridge_stack.producer(
        GROUP, checker=made.fence.check, check_timeout_ms=CHECK_TIMEOUT_MS
    ) as producer:
        names = []
        for values in ((b"first", b"second"), (b"never",)):
            tx = producer.begin(context=made.fence.context())
            for value in values:
                tx.send(Message(topic, key=b"customer-42", value=value))
            names.append(tx.id)
            if len(values) > 1:
                with made.engine.begin() as connection:
                    made.fence.enter(connection, tx)
                    work(connection, 1)
        proxy.blackhole()
        failed = producer.check_counts().failed
        until("a check fails", lambda: producer.check_counts().failed > failed, within_s=WAIT_S)
        proxy.heal()
        halfbridge_stack.wait_until_decided()
    assert [made.fenced(name) for name in names] == [("committed", 2), ("rolled_back", 0)]
    values = [record.value for record in halfbridge_stack.read_committed(topic)]
    assert values == [b"first", b"second"]
    assert made.worked() == [1]
