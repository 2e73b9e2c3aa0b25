"""halfbridge.django in a real project, on the broker in memory: each way through its blocks."""

from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, OperationalError, connection, connections, transaction
from django.test import Client, override_settings

from halfbridge import Message
from halfbridge.django import fence, inbox_transaction, message_transaction, once, producer
from halfbridge.kafka.errors import ConfigError, OutcomeUnknownError
from halfbridge.serde.units import DAY_MS
from halfbridge.sql import (
    CommitUnknownError,
    FencedError,
    FenceUsageError,
    InboxUsageError,
    TransactionEndedError,
)
from halfbridge.testkit.memory import MemoryStack, Step
from tests.sql.databases import Database
from tests.sql.django_shop.ready import FenceRow, InboxMark, Line, Order, use_database
from tests.sql.django_shop.settings import database_settings
from tests.sql.fence_scene import new_id

BOTH = pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"], indirect=True)
pytestmark = BOTH
GROUP = "order-service"


class BrokenError(Exception):
    """An error that a block raises."""


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """A started installation with the topic of orders."""
    with MemoryStack() as made:
        made.create_topic("orders")
        yield made


@pytest.fixture(autouse=True)
def shop(database: Database, stack: MemoryStack) -> Iterator[None]:
    """The project on a database of this test's own, its tables made by `migrate`."""
    use_database(database.url)
    given = {"default": {"factory": stack.producer, "producer_group": GROUP, "topics": ["orders"]}}
    with override_settings(HALFBRIDGE=given):
        call_command("migrate", run_syncdb=True, verbosity=0)
        yield
        connections["default"].close()


def message(value: bytes = b"two shirts") -> Message:
    return Message("orders", key=b"customer-42", value=value)


def place(item: str = "shirt") -> Any:
    """Run a block that inserts an order, and sends its number."""
    with message_transaction() as tx:
        order = Order.objects.create(item=item)
        tx.send(message(b"%d" % order.pk))
    return order


def items() -> list[str]:
    return list(Order.objects.order_by("pk").values_list("item", flat=True))


def row(tx: Any) -> tuple[str, int] | None:
    """Return outcome and count of the fence row."""
    return (
        FenceRow.objects.filter(transaction_id=tx.id)
        .values_list("outcome", "message_count")
        .first()
    )


def delivered(stack: MemoryStack) -> list[bytes]:
    """Return what consumers see, once everything is decided."""
    stack.wait_until_decided()
    return [record.value for record in stack.read_committed("orders")]


@pytest.mark.feature
def test_the_database_commits_and_then_the_messages(stack: MemoryStack) -> None:
    """An order and a message with the number that the database has made: both are there."""
    with message_transaction() as tx:
        tx.send(message(b"early"))
        order = Order.objects.create(item="shirt")
        tx.send(message(b"%d" % order.pk))
        assert connection.in_atomic_block
    assert items() == ["shirt"]
    assert row(tx) == ("committed", 2)
    assert sorted(delivered(stack)) == sorted([b"early", b"%d" % order.pk])
    assert connection.get_autocommit()


def test_an_error_rolls_both_back(stack: MemoryStack) -> None:
    """After an exception neither the order nor the message is there."""
    with pytest.raises(BrokenError), message_transaction() as tx:
        Order.objects.create(item="shirt")
        tx.send(message())
        raise BrokenError
    assert items() == []
    assert row(tx) == ("rolled_back", 0)
    assert delivered(stack) == []
    place("hat")
    assert items() == ["hat"]


def test_errors_are_those_of_django(stack: MemoryStack) -> None:
    """A statement that fails raises django.db's error, and rolls both back."""
    place("shirt")
    with pytest.raises(IntegrityError), message_transaction() as tx:
        tx.send(message())
        Order.objects.create(item="shirt")
    assert row(tx) == ("rolled_back", 0)
    assert len(delivered(stack)) == 1


def test_a_constraint_that_fails_at_commit_is_certain(stack: MemoryStack) -> None:
    """A deferred foreign key raises Django's IntegrityError; the block rolls back the messages."""
    called: list[str] = []
    with pytest.raises(IntegrityError), message_transaction() as tx:
        tx.send(message())
        transaction.on_commit(lambda: called.append("committed"))
        Line.objects.create(order_id=4_711)
    assert row(tx) == ("rolled_back", 0)
    assert delivered(stack) == []
    assert called == []
    assert not Line.objects.exists()


def test_the_row_goes_before_the_first_statement_and_a_check_then_gets_no_rollback(
    stack: MemoryStack,
) -> None:
    """A check that comes first stops the first statement."""
    with pytest.raises(FencedError), message_transaction() as tx:
        tx.send(message())
        assert fence().roll_back(tx.id)
        Order.objects.create(item="shirt")
    assert items() == []
    assert row(tx) == ("rolled_back", 0)
    assert delivered(stack) == []


def test_savepoints_inside_may_be_rolled_back(stack: MemoryStack) -> None:
    """An inner atomic block that fails rolls back its own work only, even as first statement."""
    with message_transaction() as tx:
        with suppress(BrokenError), transaction.atomic():
            Order.objects.create(item="hat")
            raise BrokenError
        with transaction.atomic():
            Order.objects.create(item="shirt")
        with transaction.atomic(savepoint=False):
            Order.objects.create(item="coat")
        tx.send(message())
    assert items() == ["shirt", "coat"]
    assert row(tx) == ("committed", 1)
    assert delivered(stack) == [b"two shirts"]


def test_a_block_that_is_marked_for_rollback_is_refused(stack: MemoryStack) -> None:
    """FenceUsageError: Django would roll back silently, and the messages would be delivered."""
    place("shirt")
    with (
        pytest.raises(FenceUsageError, match="marked for rollback") as raised,
        message_transaction() as tx,
    ):
        tx.send(message())
        with suppress(IntegrityError):
            Order.objects.create(item="shirt")
    assert isinstance(raised.value.__cause__, IntegrityError)
    with pytest.raises(FenceUsageError, match="marked for rollback"), message_transaction() as late:
        late.send(message())
        Order.objects.create(item="hat")
        transaction.set_rollback(True)
    with pytest.raises(FenceUsageError, match="close"), message_transaction() as closed:
        closed.send(message())
        Order.objects.create(item="hat")
        connection.close()
    assert [row(each) for each in (tx, late, closed)] == [("rolled_back", 0)] * 3
    assert items() == ["shirt"]
    assert len(delivered(stack)) == 1


def test_an_open_transaction_is_refused() -> None:
    """For an outer atomic block, another block, and autocommit off, the error has the remedy."""
    refused = pytest.raises(FenceUsageError, match="non_atomic_requests")
    with refused, transaction.atomic(), message_transaction():
        pass
    with message_transaction(), pytest.raises(FenceUsageError, match="leave it"):
        place()
    connection.set_autocommit(False)
    try:
        with pytest.raises(FenceUsageError, match="AUTOCOMMIT"):
            place()
    finally:
        connection.set_autocommit(True)
    assert items() == []
    assert not FenceRow.objects.exclude(producer_group="").exists()


def test_requests_in_a_transaction_of_djangos(stack: MemoryStack) -> None:
    """ATOMIC_REQUESTS is refused, and a view that is excepted from it works."""
    client = Client(raise_request_exception=True)
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    with pytest.raises(FenceUsageError, match="ATOMIC_REQUESTS"):
        client.get("/place/hat")
    answer = client.get("/alone/shirt")
    assert items() == ["shirt"]
    assert delivered(stack) == [answer.content]


def test_functions_of_on_commit_run_after_both_commits(stack: MemoryStack) -> None:
    """Functions of a rolled back savepoint do not run; an error of a function undoes nothing."""
    called: list[Any] = []

    def ask() -> None:
        called.append((connection.in_atomic_block, delivered(stack)))

    with message_transaction() as tx:
        transaction.on_commit(ask)
        with suppress(BrokenError), transaction.atomic():
            transaction.on_commit(lambda: called.append("never"))
            raise BrokenError
        Order.objects.create(item="shirt")
        tx.send(message())
        assert called == []
    assert called == [(False, [b"two shirts"])]
    with pytest.raises(BrokenError), message_transaction() as tx:
        transaction.on_commit(_break)
        Order.objects.create(item="hat")
        tx.send(message(b"a hat"))
    assert row(tx) == ("committed", 1)
    assert len(delivered(stack)) == 2
    with message_transaction():
        transaction.on_commit(lambda: called.append("empty"))
    assert called[-1] == "empty"
    with pytest.raises(BrokenError), message_transaction():
        transaction.on_commit(lambda: called.append("never"))
        raise BrokenError
    assert "never" not in called


def _break() -> None:
    raise BrokenError


def test_work_on_another_connection_is_refused(stack: MemoryStack) -> None:
    """Messages without a statement are rolled back, unless allow_empty is set."""
    with pytest.raises(FenceUsageError, match="allow_empty"), message_transaction() as tx:
        tx.send(message())
    assert delivered(stack) == []
    with message_transaction(allow_empty=True) as tx:
        tx.send(message())
    assert row(tx) == ("committed", 1)
    assert delivered(stack) == [b"two shirts"]


def test_a_statement_that_commits_by_itself_is_noticed(stack: MemoryStack) -> None:
    """COMMIT as text: the error has the outcome, and the messages before it are delivered."""
    with pytest.raises(TransactionEndedError) as raised, message_transaction() as tx:
        tx.send(message())
        Order.objects.create(item="shirt")
        with connection.cursor() as cursor:
            cursor.execute("COMMIT")
    assert raised.value.outcome is not None
    assert raised.value.outcome.value == "committed"
    assert items() == ["shirt"]
    assert row(tx) == ("committed", 1)
    assert delivered(stack) == [b"two shirts"]


def test_only_a_commit_that_went_out_is_in_doubt(
    stack: MemoryStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the answer to COMMIT is lost, nothing is decided, and a check finds the outcome."""
    wrapper = type(connections["default"])
    commit = wrapper._commit

    def lose(self: Any) -> None:
        commit(self)
        raise OperationalError("lost") from self.Database.OperationalError("lost")

    called: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(wrapper, "_commit", lose)
        with pytest.raises(CommitUnknownError) as raised, message_transaction() as tx:
            transaction.on_commit(lambda: called.append("committed"))
            Order.objects.create(item="shirt")
            tx.send(message())
    assert isinstance(raised.value, OutcomeUnknownError)
    assert called == []
    assert items() == ["shirt"]
    assert delivered(stack) == [b"two shirts"]
    assert row(tx) == ("committed", 1)


@pytest.mark.parametrize("step", Step)
def test_a_death_at_each_step(stack: MemoryStack, step: Step) -> None:
    """The messages of committed orders are delivered, others are not."""
    producer()
    with stack.crash_at(step):
        place()
    stack.restart()
    numbers = [b"%d" % pk for pk in Order.objects.values_list("pk", flat=True)]
    assert delivered(stack) == numbers
    assert stack.dead_letters() == []


def test_a_message_is_taken_once(stack: MemoryStack) -> None:
    """Mark, work and messages commit together; a repeated message does nothing."""
    for _ in range(2):
        with message_transaction() as tx:
            if once(None, key="order-1", group_id="billing"):
                Order.objects.create(item="bill")
                tx.send(message())
    assert items() == ["bill"]
    assert delivered(stack) == [b"two shirts"]
    with pytest.raises(BrokenError), inbox_transaction():
        assert once(None, key="order-2", group_id="billing")
        raise BrokenError
    called: list[str] = []
    with inbox_transaction():
        transaction.on_commit(lambda: called.append("committed"))
        assert once(None, key="order-2", group_id="billing")
        assert not once(None, key="order-1", group_id="billing")
        Order.objects.create(item="other bill")
    assert called == ["committed"]
    assert InboxMark.objects.count() == 2
    assert items() == ["bill", "other bill"]


def test_where_a_mark_could_be_lost_it_is_refused() -> None:
    """`once` outside of a block or in an inner one is refused; so is COMMIT without the mark."""
    with pytest.raises(InboxUsageError, match="inbox_transaction"):
        once(None, key="order-1", group_id="billing")
    with inbox_transaction(), transaction.atomic(), pytest.raises(InboxUsageError, match="inner"):
        once(None, key="order-1", group_id="billing")
    with pytest.raises(InboxUsageError, match="rolled back"), inbox_transaction():
        point = connection.savepoint()
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        assert once(None, key="order-1", group_id="billing")
        connection.savepoint_rollback(point)
    assert not InboxMark.objects.exists()


def test_each_database_has_its_own_producer_and_fence(stack: MemoryStack, tmp_path: Path) -> None:
    """A block belongs to one database: work in another database alone is refused."""
    other = database_settings(f"sqlite:///{tmp_path / 'other.sqlite'}")
    every_database = connections.configure_settings({"default": {}, "other": other})
    connections.settings["other"] = every_database["other"]
    try:
        given = {"factory": stack.producer, "topics": ["orders"]}
        groups = {"default": GROUP, "other": "other-service"}
        every = {alias: {**given, "producer_group": group} for alias, group in groups.items()}
        with override_settings(HALFBRIDGE=every):
            call_command("migrate", database="other", run_syncdb=True, verbosity=0)
            place("shirt")
            with message_transaction(using="other") as tx:
                Order.objects.using("other").create(item="hat")
                tx.send(message(b"a hat"))
            with pytest.raises(FenceUsageError, match="another"), message_transaction() as wrong:
                Order.objects.using("other").create(item="coat")
                wrong.send(message())
            assert row(tx) is None
            assert FenceRow.objects.using("other").get(transaction_id=tx.id).message_count == 1
            assert items() == ["shirt"]
            assert len(delivered(stack)) == 2
            with inbox_transaction(using="other"):
                taken = stack.read_committed("orders", count=1)[0]
                assert once(taken, group_id="billing", using="other")
                with pytest.raises(InboxUsageError, match="the same database"):
                    once(taken, group_id="billing")
            assert InboxMark.objects.using("other").count() == 1
            assert not InboxMark.objects.exists()
    finally:
        connections["other"].close()
        del connections["other"], connections.settings["other"]


def test_settings_that_do_not_fit_are_named() -> None:
    """A database without an entry and SQLite in memory raise ConfigError."""
    with override_settings(HALFBRIDGE={}), pytest.raises(ConfigError, match="HALFBRIDGE"):
        place()
    connections["default"].close()
    use_database("sqlite:///:memory:")
    with override_settings(HALFBRIDGE={"default": {"producer_group": GROUP}}):
        call_command("migrate", "halfbridge", verbosity=0)
        with pytest.raises(ConfigError, match="a file"):
            place()


def test_migrations_describe_the_models_and_may_be_repeated() -> None:
    """`makemigrations --check` finds no changes; `migrate zero` and `flush` keep the rows."""
    place()
    call_command("makemigrations", "halfbridge", check=True, dry_run=True, verbosity=0)
    call_command("migrate", "halfbridge", "zero", verbosity=0)
    call_command("migrate", "halfbridge", verbosity=0)
    call_command("flush", interactive=False, verbosity=0)
    assert FenceRow.objects.count() == 3  # two of them the table's own
    place("hat")
    assert items() == ["hat"]


def test_old_rows_and_marks_are_purged(stack: MemoryStack) -> None:
    """`manage.py halfbridge_purge` deletes a fence row and a mark that are old, and no others."""
    place()
    old = {"group_id": "billing", "message_index": 0, "created_at_ms": 1}
    FenceRow.objects.create(
        producer_group=GROUP,
        transaction_id=new_id(100 * DAY_MS),
        outcome="committed",
        message_count=1,
        created_at_ms=1,
    )
    with inbox_transaction():
        once(stack.read_committed("orders", count=1)[0], group_id="billing")
    InboxMark.objects.create(transaction_id="old", **old)
    said = StringIO()
    words = ("--group-id", "billing", "--older-than-ms", "9000000", "--retention-ms", "9000000")
    call_command("halfbridge_purge", *words, stdout=said)
    assert said.getvalue() == "deleted 1 rows of the fence\ndeleted 1 marks of billing\n"
    assert FenceRow.objects.filter(producer_group=GROUP).count() == 1
    assert InboxMark.objects.get().transaction_id != "old"
    with pytest.raises(CommandError, match="--group-id"):
        call_command("halfbridge_purge", "--older-than-ms", "1")
    with pytest.raises(CommandError, match="older_than_ms"):
        call_command("halfbridge_purge", "--group-id", "billing", "--retention-ms", "9000000")
