"""Transactions of other installations, where several deliver to one real topic.

A real record has its transaction's id and does not say who delivered it. The owner is the
installation whose half topic knows the id: so each record is judged by one audit, its owner's, and
what no half topic knows is a phantom in every audit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from halfbridge.spark_jobs.snapshot import Range


@dataclass(frozen=True, slots=True)
class Others:
    """What the half topics of other installations hold.

    Attributes:
        ranges: Half topic -> partition -> what is read.
        ids: txn: the transaction ids in them; None: there are no such topics.
    """

    ranges: Mapping[str, Mapping[int, Range]] = field(default_factory=dict)
    ids: DataFrame | None = None
