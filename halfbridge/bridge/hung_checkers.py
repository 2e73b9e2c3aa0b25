"""Reports checkers that do not return: in the log, and to the user's listener."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.kafka.trouble import SAME_AGAIN_S, tell

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bridge.check_counts import CheckCounts
    from halfbridge.bridge.check_pool import PoolState
    from halfbridge.kafka.ports import Call, Concurrency

_LOG = logging.getLogger("halfbridge.bridge")
_ADVICE = "a checker needs time-outs of its own, shorter than check_timeout_ms"


class HungCheckers:
    """Reports hung checkers every SAME_AGAIN_S, and once when no checker hangs any more.

    The loss of the last thread, and the return of the first one, are reported at once.

    Args:
        group: The producer group, for the log.
        run: Starts the thread in which `listener` is called.
        counts: Returns the argument of `listener`.
        listener: Called with the counts, in a thread of its own, and not again before the last call
            has returned; an exception is logged.
    """

    def __init__(
        self,
        group: str,
        run: Concurrency,
        *,
        counts: Callable[[], CheckCounts],
        listener: Callable[[CheckCounts], object] | None,
    ) -> None:
        self._group = group
        self._run = run
        self._counts = counts
        self._listener = listener
        self._call: Call | None = None
        self._owes_call = False
        self._told_at = float("-inf")
        self._told_hung = False
        self._told_able = True

    def look(self, state: PoolState, now: float) -> None:
        """Report if a report is due; never waits, never raises. `now`: monotonic seconds."""
        is_hung, is_able = state.hung > 0, state.able > 0
        is_news = is_able != self._told_able or (self._told_hung and not is_hung)
        if is_news or (is_hung and now - self._told_at >= SAME_AGAIN_S):
            self._told_at, self._told_hung, self._told_able = now, is_hung, is_able
            self._log(state)
            self._owes_call = self._listener is not None
        if self._owes_call and (self._call is None or self._call.done()):
            self._call_listener()

    def _log(self, state: PoolState) -> None:
        group, hung, hung_s = self._group, state.hung, state.hung_s
        if not hung:
            tell(_LOG.info, "checkers of group %s return again", group)
        elif state.able:
            text = "%d checkers of group %s hang, the oldest for %.0f s; %d threads are left: %s"
            tell(_LOG.warning, text, hung, group, hung_s, state.able, _ADVICE)
        else:
            text = (
                "%d checkers of group %s hang, the oldest for %.0f s, and no thread is left: this "
                "member answers no check before one returns, and leaves its group until then: %s"
            )
            tell(_LOG.error, text, hung, group, hung_s, _ADVICE)

    def _call_listener(self) -> None:
        try:
            thread = self._run.side_thread("halfbridge-on-hung")
        except RuntimeError:  # no more threads for this process now: tried again
            return
        self._call = thread.submit(_call, self._listener, self._counts())
        self._owes_call = False
        thread.leave()


def _call(listener: Callable[[CheckCounts], object], counts: CheckCounts) -> None:
    try:
        listener(counts)
    except BaseException:  # noqa: BLE001  (the user's code)
        tell(_LOG.exception, "on_hung failed")
