"""The producer client: half messages, decisions, and the answers to checks.

Each name is loaded when it is used first, so that an import of a pure module loads no Kafka client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.lazy import lazy_names
from halfbridge.logs import keep_to_one_line

if TYPE_CHECKING:
    from halfbridge.bridge.aio import AsyncTransaction, AsyncTransactionProducer
    from halfbridge.bridge.check_pool import CheckCounts
    from halfbridge.bridge.cloud_events import CloudEvent
    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.bridge.futures import DecisionFuture, SendFuture
    from halfbridge.bridge.local_transaction import TransactionSendResult
    from halfbridge.bridge.message import (
        Answer,
        DecisionReceipt,
        Message,
        MessageView,
        Resolution,
        SendReceipt,
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
        OtherLoopError,
        OutcomeUnknownError,
        ProducerClosedError,
        ProducerFencedError,
        RetriableError,
        TopicSetupError,
        TransactionsRejectedError,
    )

keep_to_one_line("halfbridge.bridge", "halfbridge.kafka")

__all__ = [
    "AbortableError",
    "Answer",
    "AsyncTransaction",
    "AsyncTransactionProducer",
    "BackpressureError",
    "BridgeConfig",
    "BridgeError",
    "CheckCounts",
    "CloudEvent",
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
    "OtherLoopError",
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

_MODULES = (
    "halfbridge.kafka.errors",
    "halfbridge.bridge.local_transaction",
    "halfbridge.bridge.cloud_events",
    "halfbridge.bridge.message",
    "halfbridge.bridge.transaction",
    "halfbridge.bridge.config",
    "halfbridge.bridge.futures",
    "halfbridge.bridge.message_transaction",
    "halfbridge.bridge.check_pool",
    "halfbridge.bridge.producer",
    "halfbridge.bridge.aio",
)
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
