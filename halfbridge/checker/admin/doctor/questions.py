"""Questions that are asked all at once, each answered or given up by one deadline."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.kafka.errors import BridgeError, KafkaFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.kafka.ports import Ports, Running


class Questions:
    """Asks beside each other; nobody waits longer than `timeout_s` for all of them together.

    Args:
        ports: Of which clock and concurrency are used.
        timeout_s: From now on, for all questions.

    Attributes:
        silent: Question -> why it was not answered.
    """

    def __init__(self, ports: Ports, timeout_s: float) -> None:
        self._ports = ports
        self._timeout_s = timeout_s
        self._deadline = ports.clock.monotonic() + timeout_s
        self._running: dict[str, Running] = {}
        self._answers: dict[str, Any] = {}
        self.silent: dict[str, str] = {}

    def ask(self, question: str, call: Callable[[], Any]) -> None:
        """Begin to ask; `question` says in words what is asked."""
        run = partial(self._ask, question, call)
        self._running[question] = self._ports.run.start(run, "halfbridge-doctor")

    def wait(self) -> None:
        """Return when all are answered, or when time is up."""
        for question, running in self._running.items():
            running.join(max(0.0, self._deadline - self._ports.clock.monotonic()))
            if question not in self._answers and question not in self.silent:
                self.silent[question] = f"no answer within {self._timeout_s:g} s"

    def answer(self, question: str, default: Any) -> Any:
        """Return what was answered; `default` where nothing was."""
        return self._answers.get(question, default)

    def _ask(self, question: str, call: Callable[[], Any]) -> None:
        try:
            self._answers[question] = call()
        except (BridgeError, KafkaFailure) as error:
            self.silent[question] = str(error)
