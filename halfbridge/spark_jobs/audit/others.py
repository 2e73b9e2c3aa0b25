"""Transactions of other installations that deliver to the same real topic.

A real record carries its transaction id, but not the installation that delivered it. The record
belongs to the installation whose half topic has the id, and only that installation's audit judges
the record. A record whose id is in no half topic is a phantom in every audit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from halfbridge.spark_jobs.reading.snapshot import Range


@dataclass(frozen=True, slots=True)
class Others:
    """What the half topics of other installations hold.

    Attributes:
        ranges: Half topic -> partition -> the offsets that are read.
        ids: Column txn: the transaction ids in these topics; None without such topics.
        topic_ids: Half topic -> Kafka's id.
    """

    ranges: Mapping[str, Mapping[int, Range]] = field(default_factory=dict)
    ids: DataFrame | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
