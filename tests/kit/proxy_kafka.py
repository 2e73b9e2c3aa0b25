"""A connection whose bytes are Kafka's frames, so that single requests can be aimed at."""

import asyncio
from collections.abc import Callable

from tests.kit.proxy_answers import with_error
from tests.kit.proxy_connection import SILENT, STRANDED_S_MAX, Connection, Side
from tests.kit.proxy_faults import Act, Faults, Mode
from tests.kit.proxy_frames import Frames, NotKafkaError, answer_header, refusal, request_header
from tests.kit.proxy_lane import LaneFullError

_ON_REQUESTS = (Act.HOLD, Act.STRAND, Act.REFUSE)


class KafkaConnection(Connection):
    """Passes whole requests and answers on, each as the faults say."""

    def __init__(self, faults: Faults, node: int, closed: Callable[[Connection], None]) -> None:
        super().__init__(faults, node, closed)
        self._request_frames, self._answer_frames = Frames(), Frames()
        self._open: dict[int, tuple[int, int]] = {}  # correlation id -> api key and version

    def requests(self, data: bytes) -> None:
        """Pass on what is a whole request by now."""
        try:
            frames = self._request_frames.feed(data)
            self._pass_requests(frames)
        except (NotKafkaError, LaneFullError, ValueError) as error:
            self.give_up(error)

    def _pass_requests(self, frames: list[bytes]) -> None:
        faults, node = self.faults, self.node
        delay_s = self.delay_s
        if self.mode is Mode.BLACKHOLE:
            self.swallow("requests", len(frames))
            return
        plain: list[bytes] = []
        stranded = False
        for frame in frames:
            api, version, correlation_id = request_header(frame)
            self._open[correlation_id] = api, version
            rule = faults.take(node, api, _ON_REQUESTS, frame=frame)
            if rule is None:
                plain.append(frame)
                continue
            if rule.act is Act.REFUSE:
                del self._open[correlation_id]
                self.to_client.put(refusal(frame, rule.error), delay_s)
                continue
            self.to_broker.put(b"".join(plain), delay_s)
            plain = []
            self.to_broker.put(frame, delay_s + rule.delay_ms / 1000)
            stranded = stranded or rule.act is Act.STRAND
        self.to_broker.put(b"".join(plain), delay_s)
        if stranded:
            self.client.reset()

    def answers(self, data: bytes) -> None:
        """Pass on what is a whole answer by now."""
        try:
            frames = self._answer_frames.feed(data)
            self._pass_answers(frames)
        except (NotKafkaError, LaneFullError) as error:
            self.give_up(error)

    def _pass_answers(self, frames: list[bytes]) -> None:
        faults, node = self.faults, self.node
        silent = self.mode in SILENT
        plain: list[bytes] = []
        for frame in frames:
            api, version = self._open.pop(answer_header(frame), (-1, 0))
            if silent:
                self.swallow("answers", 1)
                continue
            rule = faults.take(node, api, (Act.SWALLOW, Act.FAIL))
            if rule is None:
                plain.append(frame)
            elif rule.act is Act.SWALLOW:
                self.torn = True
            else:
                plain.append(with_error(api, version, frame, code=rule.error))
        self.to_client.put(b"".join(plain), self.delay_s)

    def ended(self, side: Side) -> None:
        """End the other side too; what the client had sent arrives first, as it would by TCP."""
        if side is self.broker:
            self.to_broker.close()
            self.client.reset()
        elif left_s := self.to_broker.left_s:
            loop = asyncio.get_running_loop()
            loop.call_later(left_s + STRANDED_S_MAX, self.broker.reset)
        else:
            self.broker.reset()
        self.to_client.close()
        self.closed(self)
