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
        seeds: Within how many of its seeds the defect must be noticed.
        is_signed: It is looked for in runs where signatures are demanded.
        is_sent: It is looked for in runs where clients do not await their decisions.
        begin: The first of these seeds. A defect that shows in one of 100 runs is looked for from a
            seed near such a run on, so that the test is quick.
        delivery: The mode in which the defect shows.
        patches: (class or module, name, what replaces it).
        every: Only every so many-th seed is run.
    """

    name: str
    seeds: int
    patches: tuple[tuple[Any, str, Any], ...]
    begin: int = 0
    delivery: Delivery = Delivery.EXACTLY_ONCE
    every: int = 1
    is_signed: bool = False
    is_sent: bool = False

    @property
    def numbers(self) -> range:
        """The seeds to run, until one of them notices the defect."""
        return range(self.begin, self.begin + self.seeds * self.every, self.every)

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
