"""The producer client: half messages, decisions, and the answers to checks.

Names are loaded when they are used, so that `bridge.settings` and the pure modules come
without a Kafka client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bridge.log_text import keep_to_one_line

if TYPE_CHECKING:
    from bridge.check_counts import CheckCounts
    from bridge.config import BridgeConfig
    from bridge.errors import (
        AbortableError,
        BackpressureError,
        BridgeError,
        ConfigError,
        FatalError,
        ForkedProcessError,
        HalfNotStoredError,
        InvalidMessageError,
        NoAnswerError,
        OutcomeUnknownError,
        ProducerClosedError,
        ProducerFencedError,
        RetriableError,
        TopicSetupError,
    )
    from bridge.futures import DecisionFuture, SendFuture
    from bridge.message import (
        Answer,
        DecisionReceipt,
        Message,
        MessageView,
        Resolution,
        SendReceipt,
        TransactionSendResult,
    )
    from bridge.message_transaction import Transaction
    from bridge.producer import TransactionProducer
    from bridge.transaction import IllegalTransitionError, State

keep_to_one_line("halfbridge.bridge", "halfbridge.kafka")

_HOMES = {
    "bridge.check_counts": ("CheckCounts",),
    "bridge.config": ("BridgeConfig",),
    "bridge.errors": (
        "AbortableError",
        "BackpressureError",
        "BridgeError",
        "ConfigError",
        "FatalError",
        "ForkedProcessError",
        "HalfNotStoredError",
        "InvalidMessageError",
        "NoAnswerError",
        "OutcomeUnknownError",
        "ProducerClosedError",
        "ProducerFencedError",
        "RetriableError",
        "TopicSetupError",
    ),
    "bridge.message": (
        "Answer",
        "DecisionReceipt",
        "Message",
        "MessageView",
        "Resolution",
        "SendReceipt",
        "TransactionSendResult",
    ),
    "bridge.futures": ("DecisionFuture", "SendFuture"),
    "bridge.message_transaction": ("Transaction",),
    "bridge.producer": ("TransactionProducer",),
    "bridge.transaction": ("IllegalTransitionError", "State"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AbortableError",
    "Answer",
    "BackpressureError",
    "BridgeConfig",
    "BridgeError",
    "CheckCounts",
    "ConfigError",
    "DecisionFuture",
    "DecisionReceipt",
    "FatalError",
    "ForkedProcessError",
    "HalfNotStoredError",
    "IllegalTransitionError",
    "InvalidMessageError",
    "Message",
    "MessageView",
    "NoAnswerError",
    "OutcomeUnknownError",
    "ProducerClosedError",
    "ProducerFencedError",
    "Resolution",
    "RetriableError",
    "SendFuture",
    "SendReceipt",
    "State",
    "TopicSetupError",
    "Transaction",
    "TransactionProducer",
    "TransactionSendResult",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
