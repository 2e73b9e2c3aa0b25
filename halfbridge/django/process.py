"""What a process has for each database: engines, a fence, inboxes, and a producer.

It is made when it is first used, and again in a process that was forked since: neither a Kafka
client nor a database connection works in two processes. What the parent has made is kept in its
children, unused, because freeing it would wait for threads that a child does not have.
"""

from __future__ import annotations

import os
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, connections
from sqlalchemy import MetaData

from halfbridge.bridge import TransactionProducer
from halfbridge.django.engine import atomic_engine, own_engine
from halfbridge.kafka.errors import ConfigError
from halfbridge.sql import Fence, Inbox
from halfbridge.sql.fence_table import FenceTable
from halfbridge.sql.inbox import inbox_table
from halfbridge.sql.tables import create_tables as create_all

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from halfbridge.bridge import Answer, MessageView

_INBOX = "halfbridge_inbox"


class Member:
    """What one process has for one database. Thread-safe."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._making = RLock()  # from Python 3.12 on, cached properties have none
        self._inboxes: dict[str, Inbox] = {}

    @cached_property
    def engine(self) -> Engine:
        """For checks; see own_engine."""
        return own_engine(self._alias)

    @cached_property
    def block_engine(self) -> Engine:
        """For blocks; see `atomic_engine`."""
        return atomic_engine(self._alias, self.engine)

    @cached_property
    def fence(self) -> Fence:
        """The fence of the producer's group. ConfigError: the user corrects Django's settings."""
        django = connections[self._alias]
        if django.vendor == "sqlite" and django.is_in_memory_db():
            raise ConfigError(
                field=f"DATABASES[{self._alias!r}]",
                value=str(django.settings_dict["NAME"]),
                origin="Django's settings",
                allowed='a file, because checks have connections of their own; in tests {"TEST":'
                ' {"NAME": BASE_DIR / "test.sqlite3"}}',
            )
        return Fence(self.engine, producer_group=self.producer.config.producer_group)

    @cached_property
    def producer(self) -> TransactionProducer:
        """The producer, perhaps not started yet. ConfigError: as of `fence`."""
        given = getattr(settings, "HALFBRIDGE", None)
        if not isinstance(given, dict) or not isinstance(given.get(self._alias), dict):
            raise ConfigError(
                field="HALFBRIDGE",
                value=f"a {type(given).__name__}",
                origin="Django's settings",
                allowed=f'{{"{self._alias}": {{"bootstrap_servers": "...", "producer_group":'
                ' "..."}}: a dict of database aliases, with the arguments of TransactionProducer',
            )
        arguments = {"factory": TransactionProducer, "checker": self._check, **given[self._alias]}
        factory = arguments.pop("factory")
        made: TransactionProducer = factory(**arguments)
        return made

    def started(self) -> TransactionProducer:
        """Return the producer, which answers checks from now on.

        Raises as `TransactionProducer.start`, and ConfigError as `fence`.
        """
        with self._making:
            self.made_fence().check_producer(self.producer)
            self.producer.start()
            return self.producer

    def made_fence(self) -> Fence:
        """Return the fence. ConfigError: the user corrects the setting that it names."""
        with self._making:
            return self.fence

    def connect(self) -> Connection:
        """Return a connection that runs over this thread's, in a new atomic block."""
        with self._making:
            engine = self.block_engine
        connection = engine.connect()
        connection.begin()
        return connection

    def inbox(self, group_id: str) -> Inbox:
        """Return the inbox of a consumer group."""
        found = self._inboxes.get(group_id)
        if found is None:
            made = Inbox(self.engine, group_id=group_id, name=_INBOX)
            found = self._inboxes.setdefault(group_id, made)
        return found

    def close(self) -> None:
        """Close the producer and the connections for checks, where they were made."""
        made = vars(self)  # of the cached properties
        if "producer" in made:
            self.producer.close()
        if "engine" in made:
            self.engine.dispose()

    def _check(self, view: MessageView) -> Answer:
        return self.fence.check(view)


_MEMBERS: dict[tuple[int, str], Member] = {}


def member(using: str | None) -> Member:
    """Return what this process has for a database."""
    alias = DEFAULT_DB_ALIAS if using is None else using
    connections[alias]  # Django's error for an alias that does not exist
    key = os.getpid(), alias
    return _MEMBERS.get(key) or _MEMBERS.setdefault(key, Member(alias))


def producer(using: str | None = None) -> TransactionProducer:
    """Return this process's producer for a database; start it if necessary.

    A worker that calls this when it starts, after the fork, answers checks from then on. Others
    begin with their first block. close() ends it for the rest of the process.

    Raises:
        ConfigError: the settings HALFBRIDGE or DATABASES do not fit; correct them.
        BridgeError: as `TransactionProducer.start`; nothing was sent.
    """
    return member(using).started()


def fence(using: str | None = None) -> Fence:
    """Return this process's fence for a database, whose engine has connections of its own.

    Raises ConfigError: the user corrects the setting that it names.
    """
    return member(using).made_fence()


def _forget(*, setting: str, **_: object) -> None:
    """Close what was made for another value of HALFBRIDGE: tests override settings."""
    if setting == "HALFBRIDGE":
        for key in [each for each in _MEMBERS if each[0] == os.getpid()]:
            _MEMBERS.pop(key).close()


setting_changed.connect(_forget)


def create_tables(alias: str) -> None:
    """Create the tables of fence and inbox if they do not exist, for the migration."""
    engine: Any = member(alias).engine
    FenceTable(engine).create()
    metadata = MetaData()
    inbox_table(metadata, name=_INBOX, schema=None)
    create_all(engine, metadata)
