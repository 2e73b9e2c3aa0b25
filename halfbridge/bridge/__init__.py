"""The producer client: half messages, decisions, and the answers to checks.

Each name is loaded when it is used first, so that an import of a pure module loads no Kafka client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from halfbridge.logs import keep_to_one_line

if TYPE_CHECKING:
    from halfbridge.bridge.check_pool import CheckCounts
    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.bridge.futures import DecisionFuture, SendFuture
    from halfbridge.bridge.message import (
        Answer,
        DecisionReceipt,
        Message,
        MessageView,
        Resolution,
        SendReceipt,
        TransactionSendResult,
    )
    from halfbridge.bridge.message_transaction import Transaction
    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.bridge.transaction import IllegalTransitionError, State
    from halfbridge.kafka.errors import (
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
        TransactionsRejectedError,
    )

keep_to_one_line("halfbridge.bridge", "halfbridge.kafka")

_HOMES = {
    "halfbridge.bridge.check_pool": ("CheckCounts",),
    "halfbridge.bridge.config": ("BridgeConfig",),
    "halfbridge.kafka.errors": (
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
        "TransactionsRejectedError",
    ),
    "halfbridge.bridge.message": (
        "Answer",
        "DecisionReceipt",
        "Message",
        "MessageView",
        "Resolution",
        "SendReceipt",
        "TransactionSendResult",
    ),
    "halfbridge.bridge.futures": ("DecisionFuture", "SendFuture"),
    "halfbridge.bridge.message_transaction": ("Transaction",),
    "halfbridge.bridge.producer": ("TransactionProducer",),
    "halfbridge.bridge.transaction": ("IllegalTransitionError", "State"),
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
    "TransactionsRejectedError",
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
