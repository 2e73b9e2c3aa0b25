"""The two modes in which an installation delivers, and their names on the wire and in settings."""

from __future__ import annotations

from enum import Enum

# Name of the mode among the limits of the settings record, where every value is a whole number.
DELIVERY_LIMIT = "delivery"


class Delivery(str, Enum):
    """How often a message may be in its real topic."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"

    @property
    def number(self) -> int:
        """The mode as the settings record says it."""
        return _NUMBERS[self]

    @classmethod
    def of_number(cls, number: int | None) -> Delivery | None:
        """Return the mode that a settings record says; None where it says none that is known."""
        return next((mode for mode, each in _NUMBERS.items() if each == number), None)


_NUMBERS = {Delivery.EXACTLY_ONCE: 1, Delivery.AT_LEAST_ONCE: 2}

DELIVERIES = tuple(mode.value for mode in Delivery)
