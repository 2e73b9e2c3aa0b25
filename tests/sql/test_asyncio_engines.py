"""Engines and connections that are no synchronous ones of SQLAlchemy: refused by name. No Kafka."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from halfbridge.bridge.message import Message
from halfbridge.kafka.errors import ConfigError
from halfbridge.sql import Fence, FenceUsageError, Inbox, InboxUsageError, LocalMessages


class AsyncEngine:
    """As SQLAlchemy's, which needs an asyncio driver: it has the dialect of its engine."""

    dialect = create_engine("sqlite://").dialect


class DatabaseWrapper:
    """As Django's: its attribute `connection` is the driver's, or None."""

    connection = None


@pytest.mark.parametrize(
    "make",
    [
        lambda engine: Fence(engine, producer_group="g"),
        lambda engine: Inbox(engine, group_id="g"),
        LocalMessages,
    ],
)
def test_an_asyncio_engine(make: Any) -> None:
    """Refused where it is given, with the remedy, and not at the first statement."""
    with pytest.raises(ConfigError, match=r"AsyncEngine.*AsyncFence.*create_engine\(\)"):
        make(AsyncEngine())


def test_a_connection_of_another_library(tmp_path: Path) -> None:
    """Inbox and LocalMessages refuse it with the remedy."""
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    given: Any = DatabaseWrapper()
    with pytest.raises(InboxUsageError, match="DatabaseWrapper: give a SQLAlchemy Connection"):
        Inbox(engine, group_id="g").once(given, None, key="k")
    with pytest.raises(FenceUsageError, match="DatabaseWrapper: give a SQLAlchemy Connection"):
        LocalMessages(engine).add(given, Message("orders"))


def test_a_scoped_session_of_the_inbox(tmp_path: Path) -> None:
    """The inbox accepts it like a Session."""
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
    inbox = Inbox(engine, group_id="g")
    inbox.create()
    session = scoped_session(sessionmaker(engine))
    assert inbox.once(session, None, key="k")
    session.commit()
    assert not inbox.once(session, None, key="k")
    session.remove()
    engine.dispose()
