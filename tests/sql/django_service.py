"""fence_service.py with blocks of halfbridge.django, whose statements run on Django's cursors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.db import Error, connection
from sqlalchemy.exc import SQLAlchemyError

from halfbridge import Transaction
from halfbridge.django import fence, message_transaction, once
from halfbridge.django.process import member
from tests.kit.load import PRODUCER_GROUP
from tests.sql.django_shop.ready import use_database
from tests.sql.fence_plan import Kind
from tests.sql.fence_service import Service, main
from tests.sql.fence_troubles import Engines


class DjangoEngines(Engines):
    """Engines of a Django service: fence and inbox are those of halfbridge.django."""

    def __init__(self, url: str) -> None:
        super().__init__(url, PRODUCER_GROUP)
        use_database(url)
        self.fence: Any = SimpleNamespace(check=lambda view: fence().check(view))
        self.inbox: Any = SimpleNamespace(once=_once)

    def fence_of(self, kind: Kind) -> Any:
        """Return an object with the engine on whose commit and checkin events the service dies."""
        return SimpleNamespace(engine=member(None).block_engine)


class DjangoService(Service):
    """A service whose producer message_transaction uses."""

    def __init__(self, options: argparse.Namespace) -> None:
        given = {"factory": lambda **_: self.producer, "producer_group": PRODUCER_GROUP}
        settings.HALFBRIDGE = {"default": given}
        super().__init__(options, DjangoEngines(options.url))

    @contextmanager
    def fenced(self, kind: Kind) -> Iterator[tuple[Transaction, Any]]:
        """Yield a block of halfbridge.django, and Django's connection as `execute`."""
        try:
            with message_transaction() as tx:
                yield tx, SimpleNamespace(execute=_execute)
        except Error as error:  # the service expects SQLAlchemy's class
            raise SQLAlchemyError(str(error)) from error


def _execute(statement: Any, rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    query = f"INSERT INTO {statement.table.name} ({', '.join(names)}) VALUES"
    with connection.cursor() as cursor:
        cursor.executemany(
            f"{query} ({', '.join(['%s'] * len(names))})", [[*row.values()] for row in rows]
        )


def _once(_connection: object, message: Any, key: str) -> bool:
    return once(message, key=key, group_id=PRODUCER_GROUP)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], DjangoService))
