"""Errors of the client and of everything that speaks to Kafka, split by who must act.

BridgeError
├─ RetriableError            the same call may be repeated, now or later
│  ├─ BackpressureError      too much in flight; slow down
│  └─ TransactionsRejectedError  an operator stopped new transactions; later
├─ AbortableError            this program aborts its kafka_txn and begins another one
├─ HalfNotStoredError        no ack for a half message: do not run the local transaction
├─ OutcomeUnknownError       in doubt: the check settles it; only the same decision may be repeated
├─ FatalError                close this producer, make a new one
│  ├─ ProducerFencedError    another instance holds the transactional id
│  ├─ ProducerClosedError    used before start or after close
│  └─ ForkedProcessError     made before a fork; make one in the child
├─ NoAnswerError             raised by a checker that cannot tell now: the daemon asks again
├─ TopicSetupError           an operator makes topics; the text names the command
├─ InvalidMessageError       (also ValueError) the caller changes the message
└─ ConfigError               (also ValueError) whoever wrote the configuration corrects it

Outside on purpose: serde.SerdeError, and IllegalTransitionError (RuntimeError), a caller's bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.serde.settings import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence


class BridgeError(Exception):
    """An error of the client, of Kafka, or of the arguments and settings."""


class RetriableError(BridgeError):
    """Nothing happened and the same call may be repeated."""


class BackpressureError(RetriableError):
    """There was no room for another message in time; the brokers are slower than the caller."""


class TransactionsRejectedError(RetriableError):
    """An operator stopped new transactions of the installation; nothing was begun or sent.

    What was sent before may be decided, and is checked and delivered.

    Attributes:
        reason: Of the operator.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class AbortableError(BridgeError):
    """The kafka_txn must be aborted; the daemon then reads its input again from the offsets."""


class HalfNotStoredError(BridgeError):
    """A half message was not acknowledged: the local transaction must not run.

    Only `rollback` is allowed on the transaction now. The half topic may hold the message
    nevertheless; then the message is rolled back, or checked.

    Attributes:
        transaction_id: The message transaction.
    """

    def __init__(self, message: str, *, transaction_id: str = "") -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class OutcomeUnknownError(BridgeError):
    """A decision was sent and not acknowledged: the op log may or may not hold the decision.

    Nothing is lost: the check settles it. Only the same decision may be repeated.

    Attributes:
        transaction_id: The message transaction.
    """

    def __init__(self, message: str, *, transaction_id: str = "") -> None:
        super().__init__(message)
        self.transaction_id = transaction_id


class NoAnswerError(BridgeError):
    """A checker cannot tell now how a local transaction ended, and says why.

    Raised by checkers. Nothing is decided and nothing is counted: the daemon asks again, up to its
    transaction_age_ms_max. By contrast, check_count_max answers UNKNOWN end a transaction.
    """


class FatalError(BridgeError):
    """This client instance cannot be used any more; close it and make a new one."""


class ProducerFencedError(FatalError):
    """Another instance took over the transactional id (or the broker timed the kafka_txn out)."""


class ProducerClosedError(FatalError):
    """The producer is not started, or closed already."""


class ForkedProcessError(FatalError):
    """The producer was made in a parent process; librdkafka's threads do not survive a fork."""


class TopicSetupError(BridgeError):
    """A topic is missing or has the wrong shape; the text names the command that corrects it.

    Attributes:
        topics: The topics to create or to correct; empty if the broker named none.
    """

    def __init__(self, message: str, *, topics: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.topics = tuple(topics)


class InvalidMessageError(BridgeError, ValueError):
    """A message cannot be sent as it is; nothing was sent.

    Attributes:
        field: The part of the message that is wrong, such as `key` or `headers`.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class ConfigError(BridgeError, SettingError):
    """A setting is wrong; see the attributes `field`, `value`, `origin` and `allowed`."""
