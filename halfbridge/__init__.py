"""The public names: `from halfbridge import TransactionProducer, Message, Resolution`.

The names are loaded when they are used: importing `halfbridge.cli` costs no Kafka client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge import bridge

if TYPE_CHECKING:
    from halfbridge.bridge import *  # noqa: F403  (the same names)

__version__ = "0.1.0"
__all__ = bridge.__all__


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(bridge, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
