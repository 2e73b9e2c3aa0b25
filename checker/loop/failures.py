"""What can go wrong between the loop and Kafka. In each case the ledgers are dropped.

InputLostError          records may be gone that were taken: read again from the offsets
KafkaTxnFailedError     a kafka_txn did not happen, or may have happened; producers are replaced
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.bridge.failure import PERMANENT, TOO_LARGE, Code

if TYPE_CHECKING:
    from halfbridge.bridge.failure import KafkaFailure


class InputLostError(Exception):
    """consume() failed: records may be gone that it had taken; read again from the offsets."""


class KafkaTxnFailedError(Exception):
    """A kafka_txn did not happen, or may have happened.

    Attributes:
        failure: What the client or a broker said; None: neither said anything.
        topic: Topic of the record that is refused; empty when not known.
        fenced: Another producer took the id over, or the broker timed the kafka_txn out.
    """

    def __init__(
        self,
        text: str,
        failure: KafkaFailure | None = None,
        *,
        topic: str = "",
        fenced: bool = False,
    ) -> None:
        super().__init__(text)
        self.failure = failure
        self.topic = topic
        self.fenced = fenced

    @property
    def permanent(self) -> bool:
        """Whether the broker refuses something in the batch for good."""
        return self._code in PERMANENT

    @property
    def topic_refused(self) -> bool:
        """Whether it refuses everything of this daemon on a topic: `topic`, if that is known."""
        return self._code == Code.TOPIC_AUTHORIZATION_FAILED

    @property
    def untimely(self) -> bool:
        """Whether it refuses a timestamp."""
        return self._code == Code.INVALID_TIMESTAMP

    @property
    def too_large(self) -> bool:
        """Whether it refuses a size: of one record, or of several that were sent at once."""
        return self._code in TOO_LARGE

    @property
    def _code(self) -> int | None:
        return None if self.failure is None else self.failure.code
