"""Offsets that were kept outside Kafka, of topics that have changed since."""

from __future__ import annotations

import pytest

from halfbridge.spark_jobs.tables.checkpoints import TopicsChangedError, refuse_changed

KEPT = {"orders": "A", "invoices": "B", "reports": ""}


@pytest.mark.parametrize(
    ("present", "named"),
    [
        ({**KEPT, "other": "C"}, None),
        ({**KEPT, "reports": "C"}, None),
        ({**KEPT, "orders": ""}, None),
        ({**KEPT, "orders": "C"}, "created again, .* now: orders .id A, now C.. Begin anew"),
        ({"orders": "A", "reports": ""}, "may not DESCRIBE any more: invoices. Begin anew"),
        ({"orders": "C", "invoices": "D"}, "invoices .*, orders .*; and .* reports. Begin anew"),
    ],
    ids=["the same", "no id kept", "no id now", "made anew", "gone", "all at once"],
)
def test_topics_that_changed_are_named(present: dict[str, str], named: str | None) -> None:
    """All of them, with the way on; where an id is not known nothing is guessed."""
    remedy = "Begin anew."
    if named is None:
        refuse_changed("it", KEPT, present, remedy=remedy)
        return
    with pytest.raises(TopicsChangedError, match=named):
        refuse_changed("it", KEPT, present, remedy=remedy)
