"""The order service's own database: SQLite, one row an order that was really placed."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    number INTEGER PRIMARY KEY,
    customer TEXT NOT NULL,
    transaction_id TEXT NOT NULL UNIQUE
)
"""
_LOCK_WAIT_S = 10.0


class OrderDatabase:
    """Orders that are placed for certain; one connection that threads take turns on.

    Args:
        path: The database file, shared by a killed service and its successor.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=_LOCK_WAIT_S, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        # A killed process loses nothing at NORMAL; only a power cut could.
        self._connection.execute("PRAGMA synchronous=NORMAL")
        with self._connection:
            self._connection.execute(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def place(
        self,
        number: int,
        *,
        customer: str,
        transaction_id: str,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Insert an order, and commit; what `before_commit` raises rolls the insert back."""
        with self._lock, self._connection:
            self._connection.execute(
                "INSERT INTO orders VALUES (?, ?, ?)", (number, customer, transaction_id)
            )
            before_commit()

    def is_placed(self, transaction_id: str) -> bool:
        """Tell whether the local transaction of a message transaction was committed."""
        query = "SELECT 1 FROM orders WHERE transaction_id = ?"
        with self._lock, closing(self._connection.execute(query, (transaction_id,))) as rows:
            return rows.fetchone() is not None
