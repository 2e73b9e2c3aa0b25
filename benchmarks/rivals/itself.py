"""halfbridge with the same workloads, as `halfbridge bench` runs them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.rivals.workload import Outcome, outcome_of
from halfbridge.bench.run import measure, open_brokers

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bench.load import BenchConfig
    from halfbridge.testkit.children import Interrupts

_WARM_AGAIN_S = 5.0  # processes are new, the broker is warm


class Halfbridge:
    """A broker, and for each workload a daemon and a client of its own."""

    name = "halfbridge"

    def __init__(self, interrupts: Interrupts, say: Callable[[str], None]) -> None:
        self._interrupts, self._say = interrupts, say
        self._stack = ExitStack()
        self._is_warm = False

    def start(self, config: BenchConfig) -> None:
        """Start a broker: each workload begins with a warm-up, and the first one's is long."""
        self._brokers = self._stack.enter_context(open_brokers("", say=self._say))

    def close(self) -> None:
        self._stack.close()

    def run(self, name: str, config: BenchConfig) -> Outcome | None:
        if self._is_warm:
            config = replace(config, warmup_s=min(config.warmup_s, _WARM_AGAIN_S))
        self._is_warm = True
        found = measure(config, self._brokers, interrupts=self._interrupts, say=self._say)
        return outcome_of(found.to_json())
