"""The series of a metric with labels, and many observations at once."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from halfbridge.serde.limits import TOPIC_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prometheus_client import Counter, Gauge, Histogram

# A label value is a topic, a group, a reason or a rule. Topics beyond this number share one series,
# and so do invalid topic names: a client may invent any number of names.
TOPICS_MAX = 1000
OTHER_TOPICS = "(other)"


class Series:
    """The children of a metric with labels, bound once for each value: a string, or several."""

    def __init__(self, parent: Counter | Gauge) -> None:
        self._parent: Any = parent
        self._children: dict[str | tuple[str, ...], Any] = {}

    def add_all(self, by_value: Mapping[Any, int]) -> None:
        """Add to counters."""
        for value, count in by_value.items():
            self._child(value).inc(count)

    def set_all(self, by_value: Mapping[Any, int]) -> None:
        """Set gauges; those not in `by_value` fall to 0."""
        totals = dict.fromkeys(self._children.values(), 0)
        for value, count in by_value.items():
            child = self._child(value)
            totals[child] = totals.get(child, 0) + count
        for child, total in totals.items():
            child.set(total)

    def _child(self, value: str | tuple[str, ...]) -> Any:
        child = self._children.get(value)
        if child is not None:
            return child
        labels = value if isinstance(value, tuple) else (value,)
        if len(self._children) >= TOPICS_MAX or max(map(len, labels)) > TOPIC_CHARS_MAX:
            # The name is not remembered, because there may be any number of such names.
            labels = (OTHER_TOPICS,) * len(labels)
            value = labels if isinstance(value, tuple) else OTHER_TOPICS
            child = self._children.get(value)
        if child is None:
            child = self._children[value] = self._parent.labels(*labels)
        return child


def observe_many(histogram: Histogram, values: Iterable[float]) -> None:
    """Observe all `values`, with one locked addition per bucket instead of two per value."""
    # prometheus-client has no bulk call; these three attributes have stood since 0.4, and
    # test_metrics compares the outcome with plain observe().
    bounds: list[float] = histogram._upper_bounds  # noqa: SLF001
    buckets: list[Any] = histogram._buckets  # noqa: SLF001  (see above)
    counts = [0] * len(bounds)
    total = 0.0
    for value in values:
        counts[bisect_left(bounds, value)] += 1
        total += value
    if not any(counts):
        return
    histogram._sum.inc(total)  # noqa: SLF001  (see above)
    for bucket, count in zip(buckets, counts, strict=True):
        if count:
            bucket.inc(count)
