"""A connection of any protocol: bytes pass as they are, so that a database can be behind it."""

import asyncio
from collections.abc import Callable

from tests.kit.proxy_connection import SILENT, Connection, Side
from tests.kit.proxy_faults import RAW, Act, Faults, Mode
from tests.kit.proxy_lane import Lane, LaneFullError

_ACTS = (Act.HOLD, Act.STRAND, Act.REFUSE, Act.SWALLOW)
_BEHIND_S = 0.05  # timers that are due at the same moment fire in any order


class RawConnection(Connection):
    """Passes bytes on as they come; an orderly end stays one, behind what was sent before it."""

    def __init__(self, faults: Faults, node: int, closed: Callable[[Connection], None]) -> None:
        super().__init__(faults, node, closed)
        self._mute = False  # an answer was swallowed: nothing more comes back

    def requests(self, data: bytes) -> None:
        """Pass on what the client wrote."""
        if self.mode is Mode.BLACKHOLE:
            self.swallow("requests", 1)
            return
        rule = self.faults.take(self.node, RAW, _ACTS, frame=data)
        if rule is None:
            self._put(self.to_broker, data)
            return
        if rule.act is Act.REFUSE:
            self.reset()
            return
        self._put(self.to_broker, data, rule.delay_ms / 1000)
        if rule.act is Act.SWALLOW:
            self._mute = self.torn = True
        elif rule.act is Act.STRAND:
            self.client.reset()

    def answers(self, data: bytes) -> None:
        """Pass on what the server wrote."""
        if self._mute or self.mode in SILENT:
            self.swallow("answers", 1)
        else:
            self._put(self.to_client, data)

    def ended(self, side: Side) -> None:
        """End the other side too, behind what is on the way; a black hole takes the end as well."""
        of_client = side is self.client
        other = self.broker if of_client else self.client
        if self.mode is Mode.BLACKHOLE and other.is_open:
            self.torn = True  # whoever is left learns of it when the black hole is healed
            return
        if left_s := (self.to_broker if of_client else self.to_client).left_s:
            asyncio.get_running_loop().call_later(left_s + _BEHIND_S, other.finish)
        else:
            other.finish()
        self.closed(self)

    def _put(self, lane: Lane, data: bytes, more_s: float = 0) -> None:
        try:
            lane.put(data, self.delay_s + more_s)
        except LaneFullError as error:
            self.give_up(error)
