"""A TCP proxy in front of any one server, such as a database; the protocol does not matter."""

from halfbridge.testkit.ports import free_ports
from tests.kit.proxy_faults import RAW, Act, Rule
from tests.kit.proxy_owner import ProxyError, ProxyOwner, Route

__all__ = ["Act", "ProxyError", "TcpProxy"]

_NODE_ID = 0  # of the only server


class TcpProxy(ProxyOwner):
    """A proxy that passes bytes as they are. A context manager; not thread-safe.

    `cut`, `refuse`, `blackhole`, `drop_answers`, `delay` and `aim` stay until `heal`. A black hole
    takes the ends of connections too: a server continues for a client that is gone, and the other
    way round.

    Args:
        server_port: Of the server on the loopback interface, which may be down.
        port: For clients; 0 takes a free one.
    """

    def __init__(self, server_port: int, port: int = 0) -> None:
        self.port = port or free_ports(1)[0]
        super().__init__([Route(_NODE_ID, self.port, server_port)], raw=True)

    def aim(self, act: Act, text: str, *, times: int = 1, delay_ms: int = 0) -> None:
        """Disturb single messages of clients: those that hold `text`, such as COMMIT.

        REFUSE: it does not arrive, and the connection is reset. STRAND: it arrives `delay_ms`
        late, and the client's connection is reset at once. SWALLOW: it arrives, nothing comes back
        from then on. HOLD: it arrives `delay_ms` late. `text` must stand in what the client wrote
        at once, as a short statement does.

        Args:
            act: One of these four.
            text: As it stands in the message, in the same case.
            times: How many messages it hits; 0 means all, until healed.
            delay_ms: How late a message that is held or stranded arrives.
        """
        rule = Rule(api=RAW, act=act, text=text, times=times, delay_ms=delay_ms)
        self._ask({"do": "rule", "rule": rule.to_plain()})

    def hits(self, act: Act) -> int:
        """Return how many messages were hit."""
        return self.counts()[f"{act.value}:{RAW}"]
