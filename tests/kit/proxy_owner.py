"""A proxy's owner: starts the process, tells it which faults to make, and ends it."""

import json
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from tests.kit.proxy_faults import Mode

_ROOT = Path(__file__).parents[2]
_ANSWER_S_MAX = 15.0  # a start of the interpreter on a busy machine
_END_S_MAX = 5.0


class ProxyError(RuntimeError):
    """The proxy did not start, or does not answer; the test cannot go on."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where clients reach a server, and where it really is, both on the loopback interface."""

    node_id: int
    port: int
    broker_port: int


class ProxyOwner:
    """What every proxy can do. A context manager; not thread-safe.

    A connection that lost bytes is reset when its server's traffic is healed: nothing that TCP
    does would let it go on after a hole.

    Args:
        routes: One for each server.
        raw: Bytes pass as they are; else they are Kafka's frames.
    """

    def __init__(self, routes: Iterable[Route], *, raw: bool) -> None:
        self._routes = tuple(routes)
        self._raw = raw
        self._nodes = [route.node_id for route in self._routes]
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = b""

    def start(self) -> Self:
        """Start; returns when it listens everywhere.

        Raises:
            ProxyError: a port is taken.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.proxy_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd=_ROOT,  # where `tests` can be imported from
        )
        try:
            routes = [[each.node_id, each.port, each.broker_port] for each in self._routes]
            self._ask({"raw": self._raw, "routes": routes})
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End it, with all its connections. Idempotent."""
        process, self._process = self._process, None
        if process is None or process.stdin is None or process.stdout is None:
            return
        process.stdin.close()
        try:
            process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_END_S_MAX)
        process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- faults ----------------------------------------------------------------------------

    def cut(self, *nodes: int) -> None:
        """Reset all connections with these servers (all of them when none is named), new ones too.

        This and the following stay until `heal`.
        """
        self._link(nodes, Mode.CUT)

    def drop_answers(self, *nodes: int) -> None:
        """Let requests arrive, and nothing come back."""
        self._link(nodes, Mode.DROP_ANSWERS)

    def blackhole(self, *nodes: int) -> None:
        """Let nothing arrive either way, on connections that stay open."""
        self._link(nodes, Mode.BLACKHOLE)

    def delay(self, delay_ms: int, *nodes: int) -> None:
        """Have everything arrive so much later, each way."""
        self._link(nodes, Mode.OPEN, delay_ms)

    def refuse(self, *nodes: int) -> None:
        """Reset new connections; those that are open go on."""
        self._link(nodes, Mode.REFUSE)

    def heal(self, *nodes: int) -> None:
        """Let traffic with these servers pass; without any named, with all, and drop all rules."""
        if nodes:
            self._link(nodes, Mode.OPEN)
        else:
            self._ask({"do": "heal"})

    def counts(self) -> Counter[str]:
        """Return what was done so far: a fault that hit nothing proves nothing."""
        return Counter(self._ask({"do": "counts"})["counts"])

    def _link(self, nodes: tuple[int, ...], mode: Mode, delay_ms: int = 0) -> None:
        chosen = list(nodes) or self._nodes
        self._ask({"do": "link", "nodes": chosen, "mode": mode.value, "delay_ms": delay_ms})

    def _ask(self, command: Any) -> dict[str, Any]:
        """Send a command and return its answer: when it is there, the command is obeyed."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ProxyError("not started")
        process.stdin.write(json.dumps(command).encode() + b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + _ANSWER_S_MAX
        while b"\n" not in self._answered:
            left_s = max(0.0, deadline - time.monotonic())
            ready = select.select([process.stdout], [], [], left_s)[0]
            data = process.stdout.read1(65_536) if ready else b""
            if not data:
                raise ProxyError(f"no answer to {command!r}; its status is {process.poll()}")
            self._answered += data
        line, _, self._answered = self._answered.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProxyError(str(answer["error"]))
        return answer
