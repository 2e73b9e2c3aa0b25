"""A planted defect: functions of the product, or of the brokers in memory, that are replaced."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from halfbridge.serde.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Mutation:
    """A planted defect.

    Attributes:
        name: What is wrong.
        seeds: Within how many seeds the defect must be noticed.
        is_signed: It is looked for in runs where signatures are demanded.
        begin: The first of these seeds. A defect that shows in one of 100 runs is looked for from a
            seed near such a run on, so that the test is quick.
        delivery: The mode in which the defect shows.
        patches: (class or module, name, what replaces it).
    """

    name: str
    seeds: int
    patches: tuple[tuple[Any, str, Any], ...]
    begin: int = 0
    delivery: Delivery = Delivery.EXACTLY_ONCE
    is_signed: bool = False

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the defect for a while."""
        planted = [patch.object(*each) for each in self.patches]
        for each in planted:
            each.start()
        try:
            yield
        finally:
            for each in reversed(planted):
                each.stop()
