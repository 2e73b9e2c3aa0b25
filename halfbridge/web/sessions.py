"""Browsers that have signed in: a random id in a cookie, and what the id stands for.

Sessions are in memory only: after a restart of the process a browser signs in again.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.web.tokens import Principal

SESSIONS_MAX = 1000  # the one that was used longest ago makes room
# Of one token. Otherwise a token with the role read could end all sessions of operators.
SESSIONS_OF_ONE_MAX = 50
IDLE_S_MAX = 3600.0
AGE_S_MAX = 12 * 3600.0
_ID_BYTES = 32


@dataclass(frozen=True, slots=True)
class Session:
    """One browser.

    Attributes:
        key: The cookie's value.
        principal: Whose token the browser signed in with.
        csrf: What each form of this browser must repeat.
        born_s: When the browser signed in, monotonic seconds.
    """

    key: str
    principal: Principal
    csrf: str
    born_s: float

    def has_csrf(self, said: str) -> bool:
        """Tell whether a form repeats this session's CSRF token."""
        return hmac.compare_digest(self.csrf.encode(), said.encode("utf-8", "replace"))


class Sessions:
    """All sessions of this process.

    The session that was used longest ago makes room for a new one: of the same token where the
    token has `SESSIONS_OF_ONE_MAX`, else of all.
    """

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._used: OrderedDict[str, tuple[Session, float]] = OrderedDict()
        self._words: dict[str, str] = {}

    def open(self, principal: Principal) -> Session:
        """Return a new session of `principal`."""
        digest = principal.digest
        own = [key for key, (each, _) in self._used.items() if each.principal.digest == digest]
        if len(own) >= SESSIONS_OF_ONE_MAX:
            self.close(own[0])
        while len(self._used) >= SESSIONS_MAX:
            self.close(next(iter(self._used)))
        key, csrf = secrets.token_urlsafe(_ID_BYTES), secrets.token_urlsafe(_ID_BYTES)
        session = Session(key, principal, csrf, self._monotonic())
        self._used[key] = (session, session.born_s)
        return session

    def find(self, key: str) -> Session | None:
        """Return the session with this id; None where there is none, or its time is over."""
        session, used_s = self._used.get(key, (None, 0.0))
        if session is None:
            return None
        now_s = self._monotonic()
        if now_s - used_s > IDLE_S_MAX or now_s - session.born_s > AGE_S_MAX:
            self.close(key)
            return None
        self._used[key] = (session, now_s)
        self._used.move_to_end(key)
        return session

    def close(self, key: str) -> None:
        """Forget a session."""
        self._used.pop(key, None)
        self._words.pop(key, None)

    def tell(self, session: Session, words: str) -> None:
        """Have the next page of a session say `words`."""
        if session.key in self._used:
            self._words[session.key] = words

    def told(self, session: Session) -> str:
        """Return what the next page of a session says, once."""
        return self._words.pop(session.key, "")
