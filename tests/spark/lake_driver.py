"""An ingest process that kills itself, JVM included, at a moment that cannot be hit from outside.

python tests/spark/lake_driver.py MOMENT NUMBER ARGUMENT...

It runs until its NUMBERth batch reaches MOMENT. Start it in a process group of its own.

python tests/spark/lake_driver.py held DIRECTORY ARGUMENT...

does not kill itself. It creates DIRECTORY/held when its first batch is staged, and continues once
DIRECTORY/go exists.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halfbridge.spark_jobs.ingest import main
from halfbridge.spark_jobs.tables.catalogs import DeltaCatalogTable, IcebergTable
from tests.spark.ingest_driver import hold_here

NEVER = "never"
STAGED = "staged"  # an Iceberg snapshot is written, and not published
COMMITTED = "committed"  # the batch is in the table, but not in Spark's commit log
UNMARKED = "unmarked"  # the same, for batches without marks of their own: the control
HELD = "held"


def after(kind: type, method: str, act: Callable[[int], None]) -> None:
    """Call `act` after each call of a method, with the number of calls."""
    whole: Callable[..., Any] = getattr(kind, method)
    calls = 0

    def watched(*words: Any, **named: Any) -> Any:
        nonlocal calls
        done = whole(*words, **named)
        calls += 1
        act(calls)
        return done

    setattr(kind, method, watched)


def die_at(number: int) -> Callable[[int], None]:
    """Return a function that kills this process's group at call `number`."""

    def die(calls: int) -> None:
        if calls == number:
            os.killpg(0, signal.SIGKILL)

    return die


def append_unmarked(table: IcebergTable, rows: Any, **_: Any) -> bool:
    """Append without write-audit-publish."""
    table._prepare(rows)
    rows.writeTo(table.name).append()
    return True


if __name__ == "__main__":
    moment, where = sys.argv[1:3]
    if moment == UNMARKED:
        IcebergTable.append = append_unmarked  # type: ignore[method-assign]  # the control
    if moment == HELD:
        after(IcebergTable, "_stage", lambda _: hold_here(Path(where)))
    elif moment == STAGED:
        after(IcebergTable, "_stage", die_at(int(where)))
    elif moment != NEVER:
        for kind in (IcebergTable, DeltaCatalogTable):
            after(kind, "append", die_at(int(where)))
    main(sys.argv[3:])
