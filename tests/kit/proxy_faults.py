"""What a proxy can do to the traffic with a broker, and which fault applies when. Pure."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

RAW = -1  # in the place of a request's key: any bytes that a client wrote


class Mode(str, Enum):
    """What becomes of everything between clients and one broker."""

    OPEN = "open"
    CUT = "cut"  # connections are reset, new ones too
    DROP_ANSWERS = "drop_answers"  # requests arrive, nothing comes back
    BLACKHOLE = "blackhole"  # neither arrives; connections stay open
    REFUSE = "refuse"  # new connections are reset; open ones go on


class Act(str, Enum):
    """What becomes of single requests."""

    SWALLOW = "swallow"  # it arrives, its answer does not
    HOLD = "hold"  # it arrives late, and all behind it on the connection with it
    # The client's connection is reset at once, so that it asks again on another one; what it had
    # sent arrives late all the same, as bytes in a slow network do.
    STRAND = "strand"
    REFUSE = "refuse"  # it does not arrive, and is answered with an error
    FAIL = "fail"  # it arrives and is obeyed, but its answer carries another error code


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A fault for requests of one kind.

    Attributes:
        api: Key of the request.
        act: What is done to it.
        nodes: Only with these brokers; empty means with all.
        delay_ms: How late a request that is held or stranded arrives.
        times: How many requests it hits; 0 means all, until healed.
        text: Only requests that hold it, such as a name.
        share: Of the requests that fit, so many are hit, at random.
        error: What the answer to a request that is refused, or to fail, says.
    """

    api: int
    act: Act
    nodes: tuple[int, ...] = ()
    delay_ms: int = 0
    times: int = 0
    text: str = ""
    share: float = 1.0
    error: int = 0

    def to_plain(self) -> dict[str, Any]:
        return {
            "api": int(self.api),
            "act": self.act.value,
            "nodes": list(self.nodes),
            "delay_ms": self.delay_ms,
            "times": self.times,
            "text": self.text,
            "share": self.share,
            "error": self.error,
        }


def rule_from(plain: Mapping[str, Any]) -> Rule:
    """Return the rule that `to_plain` wrote."""
    return Rule(
        api=int(plain["api"]),
        act=Act(plain["act"]),
        nodes=tuple(plain["nodes"]),
        delay_ms=int(plain["delay_ms"]),
        times=int(plain["times"]),
        text=str(plain["text"]),
        share=float(plain["share"]),
        error=int(plain["error"]),
    )


@dataclass
class Faults:
    """The faults that are on, and a count of what they did.

    Attributes:
        modes: Broker -> mode, where it is not OPEN.
        delays_ms: Broker -> delay of everything, each way.
        counts: What was done, by name: a fault that hit nothing proves nothing.
    """

    modes: dict[int, Mode] = field(default_factory=dict)
    delays_ms: dict[int, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    _rules: list[tuple[Rule, int]] = field(default_factory=list)
    _draw: random.Random = field(default_factory=lambda: random.Random(0))

    def mode(self, node: int) -> Mode:
        """Return what becomes of everything with a broker."""
        return self.modes.get(node, Mode.OPEN)

    def set_link(self, nodes: Iterable[int], mode: Mode, delay_ms: int) -> None:
        """Set mode and delay of the traffic with some brokers."""
        for node in nodes:
            self.modes[node] = mode
            self.delays_ms[node] = delay_ms

    def add(self, rule: Rule) -> None:
        """Turn a rule on; of several that fit, the first one is followed."""
        self._rules.append((rule, rule.times or -1))

    def clear_rules(self) -> None:
        """Turn all rules off."""
        self._rules.clear()

    def take(self, node: int, api: int, acts: Iterable[Act], *, frame: bytes = b"") -> Rule | None:
        """Return the rule that hits this request, if one does, and use it up by one."""
        for index, (rule, left) in enumerate(self._rules):
            if rule.act not in acts or not _fits(rule, node, api, frame):
                continue
            if rule.share < 1 and self._draw.random() >= rule.share:
                self.counts[f"spared:{api}"] += 1
                return None
            self._rules[index] = (rule, left - 1)
            if left == 1:
                del self._rules[index]
            self.counts[f"{rule.act.value}:{api}"] += 1
            return rule
        return None


def _fits(rule: Rule, node: int, api: int, frame: bytes) -> bool:
    return (
        rule.api == api and (not rule.nodes or node in rule.nodes) and rule.text.encode() in frame
    )
