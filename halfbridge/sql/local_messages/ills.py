"""What a relay cannot do at present: logged, counted and shown in health."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from halfbridge.sql.dialects import mend_pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Counter
    from sqlalchemy import Engine

_LOG = logging.getLogger("halfbridge.sql")


class Ills:
    """The parts of a relay that fail, each with its last error. Thread-safe.

    Args:
        troubles: Counts failures, by part.
        engine: The relay's engine, whose pool is replaced after an error of the driver that
            SQLAlchemy has not wrapped; see `mend_pool`.
    """

    def __init__(self, troubles: Counter, engine: Engine) -> None:
        self._troubles = troubles
        self._engine = engine
        self._ills: dict[str, str] = {}
        self._lock = Lock()

    def present(self) -> dict[str, str]:
        """Return part -> its last error, of the parts that fail."""
        with self._lock:
            return dict(self._ills)

    def tell(self, what: str, error: Exception) -> None:
        """Record that `what` failed: a warning for the first failure, debug lines for the next."""
        if isinstance(error, self._engine.dialect.loaded_dbapi.Error):
            mend_pool(self._engine)
        text = " ".join(str(error).split()) or type(error).__name__
        with self._lock:
            is_news = what not in self._ills
            self._ills[what] = text
        self._troubles.labels(what).inc()
        _LOG.log(logging.WARNING if is_news else logging.DEBUG, "%s: %s; again soon", what, text)

    def well(self, what: str) -> None:
        """Record that `what` works again."""
        if what in self._ills:
            with self._lock:
                self._ills.pop(what, None)

    @contextmanager
    def surviving(self, what: str) -> Iterator[None]:
        """Report any failure of the block, and its end, and continue.

        Other threads are joined only at the end, so an exception that ended one would stay unseen.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001  (told, and in health)
            self.tell(what, error)
        else:
            self.well(what)
