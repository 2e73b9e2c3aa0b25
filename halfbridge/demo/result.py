"""The demo's result: expected and delivered messages of each kind of order. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfbridge.demo.plan import Expectation, Kind, Order, expectations
from halfbridge.testkit.history import Anomaly

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.testkit.history import ClientTransaction, Verdict


@dataclass(frozen=True, slots=True)
class KindResult:
    """Messages of one kind.

    Attributes:
        orders: Orders of this kind in the plan.
        expected: Messages that must arrive.
        delivered: Distinct messages read from real topics.
        dead_lettered: Distinct messages read from the dead-letter topic.
    """

    orders: int
    expected: Expectation
    delivered: int
    dead_lettered: int

    @property
    def ok(self) -> bool:
        """Tell whether exactly the expected messages arrived."""
        return Expectation(self.delivered, self.dead_lettered) == self.expected


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The demo's verdict.

    Attributes:
        kinds: Kind -> result, for all kinds.
        verdict: The verdict of the history checker.
        seconds: Time from the start of the broker to the end of the last process.
    """

    kinds: dict[Kind, KindResult]
    verdict: Verdict
    seconds: float

    @property
    def ok(self) -> bool:
        """Tell whether every message arrived exactly once and in order, and no other message."""
        return self.verdict.ok and all(kind.ok for kind in self.kinds.values())

    @property
    def lost(self) -> int:
        """Number of expected messages that did not arrive."""
        missing = (k.expected.total - k.delivered - k.dead_lettered for k in self.kinds.values())
        found = self.verdict.counts
        return max(sum(missing), found[Anomaly.LOST] + found[Anomaly.TORN])

    def to_json(self) -> dict[str, Any]:
        """Return the object that `halfbridge demo --json` prints."""
        counts = self.verdict.counts
        return {
            "ok": self.ok,
            "kinds": {
                kind.value: {
                    "expected": found.expected.total,
                    "delivered": found.delivered,
                    "dead_lettered": found.dead_lettered,
                }
                for kind, found in self.kinds.items()
            },
            "duplicates": counts[Anomaly.DUPLICATED],
            "lost": self.lost,
            "out_of_order": counts[Anomaly.REORDERED],
            "seconds": round(self.seconds, 1),
        }


def make_result(
    plan: tuple[Order, ...],
    clients: Iterable[ClientTransaction],
    verdict: Verdict,
    *,
    seconds: float,
) -> DemoResult:
    """Return the demo's result from the plan, the clients' histories and the verdict."""
    orders = Counter(order.kind for order in plan)
    delivered: Counter[str] = Counter()
    dead_lettered: Counter[str] = Counter()
    for tx in clients:
        delivered[tx.label] += verdict.delivered.get(tx.transaction_id, 0)
        dead_lettered[tx.label] += verdict.dead_lettered.get(tx.transaction_id, 0)
    kinds = {
        kind: KindResult(orders[kind], expected, delivered[kind.value], dead_lettered[kind.value])
        for kind, expected in expectations(plan).items()
    }
    return DemoResult(kinds, verdict, seconds)
