"""The database of the producers under test: what their local transactions really did."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from halfbridge.bridge import Resolution

_SCHEMA = "CREATE TABLE IF NOT EXISTS done (transaction_id TEXT PRIMARY KEY, outcome TEXT NOT NULL)"
_LOCK_WAIT_S = 30.0


class LocalDatabase:
    """One SQLite file that all producers of the group share, as the replicas of a service do.

    A row says how a local transaction ended; no row means that nobody knows.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=_LOCK_WAIT_S, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        # A killed process loses nothing even so: the kernel has what was written.
        self._connection.execute("PRAGMA synchronous=OFF")
        with self._connection:
            self._connection.execute(_SCHEMA)

    def end(self, transaction_id: str, outcome: Resolution) -> None:
        with self._lock, self._connection:
            self._connection.execute(
                "INSERT INTO done VALUES (?, ?)", (transaction_id, outcome.value)
            )

    def outcome(self, transaction_id: str) -> Resolution:
        """Return how the local transaction ended; UNKNOWN when there is no row."""
        query = "SELECT outcome FROM done WHERE transaction_id = ?"
        with self._lock, closing(self._connection.execute(query, (transaction_id,))) as rows:
            row = rows.fetchone()
        return Resolution.UNKNOWN if row is None else Resolution(row[0])

    def close(self) -> None:
        with self._lock:
            self._connection.close()
