"""A TCP proxy between clients and brokers, with faults that a test turns on and off.

Brokers talk to each other directly: only what clients see is disturbed. The proxy is a process
of its own (`proxy_server`), so that it takes nothing from the test's interpreter; it knows
Kafka's frames and can aim at single kinds of requests. `proxy_tcp` is for anything but Kafka.
"""

from collections.abc import Iterable

from tests.kit.proxy_faults import Act, Mode, Rule
from tests.kit.proxy_frames import Api
from tests.kit.proxy_owner import ProxyError, ProxyOwner, Route

__all__ = ["Act", "Api", "KafkaProxy", "Mode", "ProxyError", "Route", "Rule"]


class KafkaProxy(ProxyOwner):
    """A proxy in front of brokers. A context manager; not thread-safe.

    Args:
        routes: One for each broker.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        super().__init__(routes, raw=False)

    def add(self, rule: Rule) -> None:
        """Aim at single requests."""
        self._ask({"do": "rule", "rule": rule.to_plain()})

    def hits(self, act: Act, api: Api) -> int:
        """Return how many requests of a kind were hit."""
        return self.counts()[f"{act.value}:{int(api)}"]
