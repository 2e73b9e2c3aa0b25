"""The blocks that an application writes: messages and inbox on Django's connection."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, connections

from halfbridge.django.engine import errors_of_django, refuse_open
from halfbridge.django.process import member
from halfbridge.sql import FenceUsageError, InboxUsageError
from halfbridge.sql.dialects import database_of
from halfbridge.sql.dialects.base import driver_of, required_connection
from halfbridge.sql.fence import fenced
from halfbridge.sql.guards import guard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from halfbridge.bridge import Transaction
    from halfbridge.sql.guards import Guard

# Django's connection, one for each thread and alias -> what is connection over it, within a block.
_OPEN: WeakKeyDictionary[Any, Connection] = WeakKeyDictionary()


@contextmanager
def message_transaction(
    using: str | None = None, *, immunity_ms: int | None = None, allow_empty: bool = False
) -> Iterator[Transaction]:
    """Run a block as `transaction.atomic(durable=True)`, and commit its messages with it.

    The fence row is written before the block's first statement. `tx.send` may be called anywhere.
    At the normal end all messages are awaited, for up to send_timeout_ms; then the database
    commits, then the messages; then on_commit() functions run. After an exception neither commits.
    docs/how-to/django.md describes it, and docs/reference/fence-blocks.md each case.

    Args:
        using: Alias of the database, a key of the setting HALFBRIDGE; None: "default".
        immunity_ms: As in `Fence.transaction`.
        allow_empty: Whether the block may send messages without running a statement.

    Raises:
        FenceUsageError: The calling code is wrong, as the text says (an atomic block is open,
            autocommit is off, the block was marked for rollback); nothing was committed.
        django.db.Error: A statement or COMMIT failed, and nothing was committed; the caller may
            run the block again.
        BridgeError: As `Fence.transaction`: above all FencedError (begin another block),
            CommitUnknownError and OutcomeUnknownError (do not repeat the work).
    """
    django = _connection(using)
    refuse_open(django)
    here = member(using)
    producer = here.started()
    block = fenced(
        here.fence, producer, None, here.connect, immunity_ms=immunity_ms, allow_empty=allow_empty
    )
    with errors_of_django(django), ExitStack() as after, block as (tx, handle):
        connection = required_connection(handle, FenceUsageError)
        after.callback(driver_of(connection).run_on_commit)
        with _watched(django, connection) as guard:
            yield tx
        if guard.is_over and not tx.message_count:
            connection.commit()  # nothing ran and nothing was sent: as an empty atomic block


@contextmanager
def inbox_transaction(using: str | None = None) -> Iterator[None]:
    """Run a block as `transaction.atomic(durable=True)`, in which `once` may be called.

    For consumers that send nothing; a message_transaction block serves those that do. COMMIT raises
    if the database has rolled a mark back by itself; on_commit() functions run after it.

    Raises:
        FenceUsageError, InboxUsageError: The calling code is wrong; nothing was committed.
        django.db.Error: A statement or COMMIT failed; take the messages again.
    """
    django = _connection(using)
    refuse_open(django)
    with errors_of_django(django), ExitStack() as after, member(using).connect() as connection:
        after.callback(driver_of(connection).run_on_commit)
        with _watched(django, connection):
            yield
        connection.commit()


def once(message: Any, *, group_id: str, key: str | None = None, using: str | None = None) -> bool:
    """Mark a message as taken in the open block; return False if the group has taken it before.

    As `Inbox.once`, in a block of message_transaction or inbox_transaction for the same database.

    Raises:
        InboxUsageError: There is no such block, or an inner atomic block is open; the caller moves
            the call. Other causes as `Inbox.once`.
        NoIdentityError, TableError, NotDurableError: As `Inbox.once`.
        django.db.Error: The database cannot tell; let it end the block, and take the message again.
    """
    django = _connection(using)
    connection = _OPEN.get(django)
    if connection is None:
        raise InboxUsageError(
            "once() needs the block of message_transaction() or inbox_transaction() on the same"
            " database: its COMMIT checks the mark"
        )
    if django.savepoint_ids:
        raise InboxUsageError(
            "once() in an inner atomic block, whose rollback would take the mark back and keep the"
            " rest: call it in the outer block"
        )
    with errors_of_django(django):
        return member(using).inbox(group_id).once(connection, message, key)


@contextmanager
def _watched(django: Any, connection: Connection) -> Iterator[Guard]:
    """Have the guard of `connection` see each statement of Django's connection; yield it."""
    guard = guard_of(connection, database_of(connection.dialect.name))

    def execute(run: Callable[..., object], *statement: object) -> Any:
        with errors_of_django(django):
            guard.before_statement(connection)
        return run(*statement)

    _OPEN[django] = connection
    try:
        with django.execute_wrapper(execute):
            yield guard
    finally:
        del _OPEN[django]
    if django.needs_rollback:  # the end of the atomic block would roll back without an error
        raise FenceUsageError(
            "the block was marked for rollback: by set_rollback(True), by close(), or because the"
            " code ignored an error; let the error end the block, or run what may fail in an inner"
            " atomic(); nothing was committed"
        ) from django.rollback_exc


def _connection(using: str | None) -> Any:
    return connections[DEFAULT_DB_ALIAS if using is None else using]
