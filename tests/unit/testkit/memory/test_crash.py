"""Deaths at each step: nothing that runs on the way out has an effect."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from halfbridge import Message, MessageView, Resolution, TransactionProducer
from halfbridge.sql import Inbox
from halfbridge.testkit.memory import (
    CrashNotReachedError,
    DisagreementError,
    MemoryStack,
    ProcessDeadError,
    Step,
    every_crash,
)
from tests.unit.testkit.memory.shop import GROUP, TOPIC, Shop

# What the database has, and what the fence says, at the moment of death.
AT_DEATH = {
    Step.BEFORE_HALF: ([], []),
    Step.AFTER_HALF_ACK: ([], []),
    Step.BEFORE_LOCAL_COMMIT: ([], []),
    Step.AFTER_LOCAL_COMMIT: ([b"two shirts"], ["committed"]),
    Step.BEFORE_DECISION: ([b"two shirts"], ["committed"]),
    Step.AFTER_DECISION_SENT: ([b"two shirts"], ["committed"]),
}

# How many half messages and decisions there are then.
RECORDS = {
    Step.BEFORE_HALF: (0, 0),
    Step.AFTER_HALF_ACK: (1, 0),
    Step.BEFORE_LOCAL_COMMIT: (1, 0),
    Step.AFTER_LOCAL_COMMIT: (1, 0),
    Step.BEFORE_DECISION: (1, 0),
    Step.AFTER_DECISION_SENT: (1, 1),
}
LOCAL = (Step.BEFORE_LOCAL_COMMIT, Step.AFTER_LOCAL_COMMIT)


class BilledBeforeError(Exception):
    """The inbox has the mark."""


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as started:
        started.create_topic(TOPIC)
        yield started


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with closing(Shop(tmp_path / "shop.db")) as made:
        yield made


def count(stack: MemoryStack, topic: str) -> int:
    """Return how many records a topic has at this moment."""
    partitions = stack.machine.broker.topic(topic).partitions
    return sum(len(each.read(each.start, each.end)[0]) for each in partitions)


def test_every_step_is_tested() -> None:
    """The tables have all of them."""
    assert AT_DEATH.keys() == RECORDS.keys() == set(Step)


@pytest.mark.parametrize("step", Step)
def test_a_death_leaves_what_a_death_leaves(stack: MemoryStack, shop: Shop, step: Step) -> None:
    """Database and log are those of the step; a new client settles the rest, and both agree."""
    producer = stack.producer(GROUP, checker=shop.fence.check)
    producer.start()
    with stack.crash_at(step):
        shop.place(producer, "two shirts")
    assert (shop.placed(), shop.fence_rows()) == AT_DEATH[step]
    names = stack.config.names
    assert (count(stack, names.half), count(stack, names.op)) == RECORDS[step]
    with stack.restart() as restarted:
        stack.wait_until_decided()
        assert [each.value for each in stack.read_committed(TOPIC)] == shop.placed()
        shop.place(restarted, "one hat")
    assert [each.value for each in stack.read_committed(TOPIC)] == shop.placed()
    assert stack.dead_letters() == []


@pytest.mark.parametrize("step", LOCAL)
def test_sessions_die_too(stack: MemoryStack, shop: Shop, step: Step) -> None:
    """A session that is used after its process has died writes nothing."""
    sessions = sessionmaker(shop.engine)
    with stack.producer(GROUP, checker=shop.fence.check) as producer:
        with (
            stack.crash_at(step),
            shop.fence.transaction(producer, session_factory=sessions) as (tx, session),
        ):
            tx.send(Message(TOPIC, value=b"two shirts"))
            session.execute(text("INSERT INTO placed VALUES ('two shirts')"))
        assert (shop.placed(), shop.fence_rows()) == AT_DEATH[step]
    stack.restart()
    stack.wait_until_decided()
    assert [each.value for each in stack.read_committed(TOPIC)] == shop.placed()


@pytest.mark.parametrize("step", Step)
def test_a_block_with_an_inbox_dies_too(stack: MemoryStack, shop: Shop, step: Step) -> None:
    """The successor takes the same message again: work, mark and message are there once."""
    inbox = Inbox(shop.engine, group_id=GROUP)
    inbox.create()

    def bill(producer: TransactionProducer) -> bool:
        with suppress(BilledBeforeError), shop.fence.transaction(producer) as (tx, connection):
            tx.send(Message(TOPIC, value=b"a bill"))
            if not inbox.once(connection, None, key="order-1"):
                raise BilledBeforeError
            connection.execute(text("INSERT INTO placed VALUES ('a bill')"))
            return True
        return False

    producer = stack.producer(GROUP, checker=shop.fence.check)
    producer.start()
    with stack.crash_at(step):
        bill(producer)
    is_there = AT_DEATH[step][1] == ["committed"]
    assert sum(each.count for each in inbox.show()) == len(shop.placed()) == is_there
    with stack.restart() as restarted:
        assert bill(restarted) is not is_there
        assert not bill(restarted)
        stack.wait_until_decided()
    assert [each.value for each in stack.read_committed(TOPIC)] == shop.placed() == [b"a bill"]
    assert stack.dead_letters() == []


@pytest.mark.parametrize("step", LOCAL)
def test_a_fence_that_is_entered_by_hand(stack: MemoryStack, shop: Shop, step: Step) -> None:
    """`Fence.enter` knows the steps, too."""
    with stack.producer(GROUP, checker=shop.fence.check) as producer:
        with stack.crash_at(step), shop.engine.connect() as connection:
            tx = producer.begin(context=shop.fence.context())
            tx.send(Message(TOPIC, value=b"two shirts"))
            shop.fence.enter(connection, tx)
            connection.execute(text("INSERT INTO placed VALUES ('two shirts')"))
            connection.commit()
            tx.commit()
        assert (shop.placed(), shop.fence_rows()) == AT_DEATH[step]


def test_cleaning_up_has_no_effect(stack: MemoryStack, shop: Shop) -> None:
    """What `except` and `finally` do of a dead process: no row, no decision, no new connection."""
    tried: list[str] = []

    def attempt(what: str, call: object) -> None:
        assert callable(call)
        try:
            call()
        except ProcessDeadError:
            tried.append(what)

    def write() -> None:
        with shop.engine.begin() as another:
            another.execute(text("INSERT INTO placed VALUES ('by a dead process')"))

    def write_at_once() -> None:
        at_once = shop.engine.execution_options(isolation_level="AUTOCOMMIT")
        with at_once.connect() as another:
            another.execute(text("INSERT INTO placed VALUES ('by a dead process')"))

    with (
        stack.producer(GROUP, checker=shop.fence.check) as producer,
        stack.crash_at(Step.BEFORE_LOCAL_COMMIT),
    ):
        connection = shop.engine.connect()
        tx = producer.begin(context=shop.fence.context())
        try:
            tx.send(Message(TOPIC, value=b"two shirts"))
            shop.fence.enter(connection, tx)
            connection.commit()
        finally:
            attempt("roll back", tx.rollback)
            attempt("begin", lambda: producer.begin().send(Message(TOPIC, value=b"another")))
            attempt("write", write)
            attempt("write at once", write_at_once)
            attempt("fence", lambda: shop.fence.roll_back(tx.id))
            assert connection.invalidated
            connection.close()
    assert tried == ["roll back", "begin", "write", "write at once", "fence"]
    assert shop.placed() == shop.fence_rows() == []
    assert count(stack, stack.config.names.op) == 0


def test_an_exception_alone_would_clean_up(stack: MemoryStack, shop: Shop) -> None:
    """Without a death the same block rolls both back: this is what a test must not see."""
    with stack.producer(GROUP, checker=shop.fence.check) as producer:
        with suppress(ProcessDeadError), shop.fence.transaction(producer) as (tx, connection):
            tx.send(Message(TOPIC, value=b"two shirts"))
            connection.execute(text("INSERT INTO placed VALUES ('two shirts')"))
            raise ProcessDeadError
        assert shop.fence_rows() == ["rolled_back"]
    assert count(stack, stack.config.names.op) == 1


def test_code_that_swallows_the_death_does_no_more(stack: MemoryStack, shop: Shop) -> None:
    """A bare `except` is a mistake that services make; their process is dead all the same."""
    with stack.producer(GROUP, checker=shop.fence.check) as producer:
        with stack.crash_at(Step.AFTER_HALF_ACK) as crash:
            try:
                shop.place(producer, "two shirts")
            except BaseException:  # noqa: BLE001 (the mistake that is tested)
                shop.place(producer, "one hat")
        assert crash.process is producer.process
        assert stack.deaths == 1
    assert shop.placed() == []
    assert count(stack, stack.config.names.half) == 1


@pytest.mark.parametrize("step", LOCAL)
def test_code_without_a_fence_marks_its_commit(stack: MemoryStack, step: Step) -> None:
    """A service with a store and a checker of its own."""
    placed: set[str] = set()

    def checker(view: MessageView) -> Resolution:
        return Resolution.COMMIT if view.transaction_id in placed else Resolution.ROLLBACK

    with (
        stack.producer(GROUP, checker=checker) as producer,
        stack.crash_at(step),
        producer.begin() as tx,
    ):
        tx.send(Message(TOPIC, value=b"two shirts"))
        stack.mark(Step.BEFORE_LOCAL_COMMIT)
        placed.add(tx.id)
        stack.mark()
    assert len(placed) == (step is Step.AFTER_LOCAL_COMMIT)
    assert len(stack.undecided()) == 1
    stack.restart()
    stack.wait_until_decided()
    assert len(stack.read_committed(TOPIC)) == len(placed)


def test_a_step_that_is_not_reached_is_an_error(stack: MemoryStack) -> None:
    """A test that crashes nothing shows nothing; the text says what is missing."""
    with stack.producer(GROUP, checker=lambda _: Resolution.UNKNOWN) as producer:
        with (
            pytest.raises(CrashNotReachedError, match=r"stack\.mark\(Step\.AFTER_LOCAL_COMMIT\)"),
            stack.crash_at(Step.AFTER_LOCAL_COMMIT),
            producer.begin() as tx,
        ):
            tx.send(Message(TOPIC, value=b"two shirts"))
        with pytest.raises(KeyError), stack.crash_at(Step.AFTER_LOCAL_COMMIT):
            raise KeyError  # its own error comes first
        stack.mark()  # nobody is to die any more


def test_a_commit_that_the_database_refuses_is_not_the_step(stack: MemoryStack, shop: Shop) -> None:
    """The local transaction has not committed: the code lives on, and rolls both back."""
    with shop.engine.begin() as connection:
        connection.execute(text("CREATE TABLE parent (id INTEGER PRIMARY KEY)"))
        references = "REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE child (id INTEGER {references})"))
    event.listen(
        shop.engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys = ON").close()
    )
    shop.engine.dispose()  # the next connection has the setting
    with stack.producer(GROUP, checker=shop.fence.check) as producer:
        with suppress(IntegrityError), stack.crash_at(Step.AFTER_LOCAL_COMMIT) as crash:
            with shop.fence.transaction(producer) as (tx, connection):
                tx.send(Message(TOPIC, value=b"two shirts"))
                connection.execute(text("INSERT INTO child VALUES (1)"))
            pytest.fail("the database took the row")
        assert crash.process is None
        assert shop.fence_rows() == ["rolled_back"]
    assert stack.undecided() == []


def test_a_death_in_the_background_ends_the_block(stack: MemoryStack) -> None:
    """Of pipelined sends the acknowledgement comes in another task; the code gets it later."""
    with stack.producer(GROUP, checker=lambda _: Resolution.UNKNOWN) as producer:
        with stack.crash_at(Step.AFTER_DECISION_SENT) as crash:
            tx = producer.begin()
            tx.send_async(Message(TOPIC, value=b"two shirts")).result()
            tx.commit_async()
            producer.flush()
            pytest.fail("a dead process went on")
        assert crash.process is producer.process
    assert len(stack.read_committed(TOPIC)) == 1


def test_decisions_of_a_dead_process_are_not_awaited(stack: MemoryStack) -> None:
    """Two decisions are in flight when one kills the process; the next block waits for neither."""
    with stack.producer(GROUP, checker=lambda _: Resolution.UNKNOWN) as producer:
        with suppress(ProcessDeadError), stack.crash_at(Step.AFTER_DECISION_SENT) as crash:
            open_ones = [producer.begin(), producer.begin()]
            for tx in open_ones:
                tx.send(Message(TOPIC, value=b"two shirts"))
            for tx in open_ones:
                tx.commit()
        assert crash.process is producer.process
    with stack.producer(GROUP, checker=lambda _: Resolution.UNKNOWN) as producer:
        began = stack.machine.broker.now_ms
        with pytest.raises(CrashNotReachedError), stack.crash_at(Step.AFTER_DECISION_SENT):
            producer.begin().send(Message(TOPIC, value=b"a coat"))
        assert stack.machine.broker.now_ms - began < 10_000


def test_other_clients_of_the_database_live_on(stack: MemoryStack, shop: Shop) -> None:
    """A session that another block has open is not closed, and nothing is watched afterwards."""
    with Session(shop.engine) as session, stack.producer(GROUP, checker=shop.fence.check) as one:
        session.execute(text("SELECT 1"))
        with stack.crash_at(Step.BEFORE_HALF):
            shop.place(one, "two shirts")
        session.execute(text("INSERT INTO placed VALUES ('by hand')"))
        session.commit()
    assert shop.placed() == [b"by hand"]


# --- a user's test, run once for each step -------------------------------------------------
Says = Callable[[], tuple[object, object]]


def test_database_and_topic_agree_after_every_crash(tmp_path: Path) -> None:
    """With a fence; each run has its own installation and database."""
    seen: list[Step | None] = []

    def orders(stack: MemoryStack, step: Step | None) -> Says:
        seen.append(step)
        shop = Shop(tmp_path / f"{step}.db")
        stack.create_topic(TOPIC)
        with stack.producer(GROUP, checker=shop.fence.check) as producer, stack.crash_at(step):
            shop.place(producer, "two shirts")

        def says() -> tuple[object, object]:
            with closing(shop):
                return shop.placed(), [each.value for each in stack.read_committed(TOPIC)]

        return says

    every_crash(orders)
    assert seen == [None, *Step]


def wrong(is_placed_first: bool) -> Callable[[MemoryStack, Step | None], Says]:
    """Return the test of a service whose checker does not look at the database."""

    def orders(stack: MemoryStack, step: Step | None) -> Says:
        placed: list[bytes] = []
        stack.create_topic(TOPIC)
        with (
            stack.producer(GROUP, checker=lambda _: Resolution.ROLLBACK) as producer,
            stack.crash_at(step),
            producer.begin() as tx,
        ):
            tx.send(Message(TOPIC, value=b"two shirts"))
            stack.mark(Step.BEFORE_LOCAL_COMMIT)
            if is_placed_first:
                placed.append(b"two shirts")
            stack.mark()
        return lambda: (placed, [each.value for each in stack.read_committed(TOPIC)])

    return orders


def test_a_checker_that_lies_is_found() -> None:
    """It rolls back what the database has committed: the first step after the commit tells."""
    with pytest.raises(DisagreementError, match="AFTER_LOCAL_COMMIT: the database says"):
        every_crash(wrong(is_placed_first=True))


def test_a_service_that_forgets_its_database_is_found() -> None:
    """Without any crash, too."""
    with pytest.raises(DisagreementError, match="no crash: the database says"):
        every_crash(wrong(is_placed_first=False))


def test_a_test_of_nothing_is_found() -> None:
    """Nothing is in the database; nothing runs where it is to die."""
    with pytest.raises(DisagreementError, match="nothing is tested"):
        every_crash(lambda _stack, _step: lambda: ([], []), steps=())
    with pytest.raises(CrashNotReachedError, match="runs nothing"):
        every_crash(lambda _stack, _step: lambda: ([1], [1]), steps=[Step.BEFORE_HALF])


# --- database connections of code that dies ------------------------------------------------

DATABASES_TOPIC = "orders"


@pytest.fixture
def engine() -> Engine:
    """A database in memory, with one connection and one table."""
    made = create_engine("sqlite://", poolclass=StaticPool)
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE placed (what TEXT)"))
    return made


def test_a_database_in_memory_outlives_its_client(engine: Engine) -> None:
    """To close its one connection would delete it: it is rolled back in place of that."""
    with MemoryStack() as stack:
        stack.create_topic(DATABASES_TOPIC)
        with (
            stack.producer("g", checker=lambda _: Resolution.UNKNOWN) as producer,
            stack.crash_at(Step.BEFORE_LOCAL_COMMIT),
            engine.begin() as connection,
            producer.begin() as tx,
        ):
            tx.send(Message(DATABASES_TOPIC, value=b"two shirts"))
            connection.execute(text("INSERT INTO placed VALUES ('two shirts')"))
            stack.mark(Step.BEFORE_LOCAL_COMMIT)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM placed")).scalar() == 0
    engine.dispose()


def test_a_plain_commit_is_not_the_step(engine: Engine) -> None:
    """Reads and writes without a fence row are nobody's local transaction."""
    with MemoryStack() as stack:
        stack.create_topic(DATABASES_TOPIC)
        with stack.producer("g", checker=lambda _: Resolution.UNKNOWN) as producer:
            crash = stack.crash_at(Step.AFTER_LOCAL_COMMIT)
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO placed VALUES ('two shirts')"))
            with producer.begin() as tx:
                tx.send(Message(DATABASES_TOPIC, value=b"two shirts"))
            assert crash.process is None
    engine.dispose()


def test_nothing_is_watched_after_the_stack(engine: Engine) -> None:
    """An engine's events are its own again."""
    with MemoryStack() as stack:
        stack.crash_at(Step.AFTER_LOCAL_COMMIT)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO placed VALUES ('two shirts')"))
    engine.dispose()
