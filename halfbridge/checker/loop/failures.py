"""Errors between the loop and Kafka. After each of them the ledgers are dropped and rebuilt.

InputLostError          consumed records may be lost: read again from the committed offsets
KafkaTxnFailedError     a kafka_txn failed, or its outcome is unknown; producers are replaced
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halfbridge.kafka.errors import PERMANENT, TOO_LARGE, Code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.kafka.errors import KafkaFailure
    from halfbridge.kafka.ports import Place


class InputLostError(Exception):
    """Consumed records may be lost: the worker reads again from the committed offsets."""


class KafkaTxnFailedError(Exception):
    """A kafka_txn failed, or its outcome is unknown.

    Attributes:
        failure: The error of the client or a broker; None if there was none.
        topic: Topic of the refused record; empty if not known.
        fenced: Another producer took over the id, or the broker timed out the kafka_txn.
        is_vague: The client called a record invalid, and does not tell whether its timestamp is.
        places: Partitions that did not take a record for now.
    """

    def __init__(
        self,
        text: str,
        failure: KafkaFailure | None = None,
        *,
        topic: str = "",
        fenced: bool = False,
        is_vague: bool = False,
        places: Iterable[Place] = (),
    ) -> None:
        super().__init__(text)
        self.failure = failure
        self.topic = topic
        self.fenced = fenced
        self.is_vague = is_vague
        self.places: Final = frozenset(places)

    @property
    def permanent(self) -> bool:
        """Whether the broker permanently refuses something in the batch."""
        return self._code in PERMANENT

    @property
    def topic_refused(self) -> bool:
        """Whether the broker refuses all records of this daemon for a topic (`topic`, if known)."""
        return self._code == Code.TOPIC_AUTHORIZATION_FAILED

    @property
    def untimely(self) -> bool:
        """Whether the broker refuses a timestamp."""
        return self._code == Code.INVALID_TIMESTAMP

    @property
    def is_unended(self) -> bool:
        """Whether the last kafka_txn of the transactional id has not ended yet."""
        return self._code == Code.CONCURRENT_TRANSACTIONS

    @property
    def too_large(self) -> bool:
        """Whether the broker refuses a size: of one record, or of several sent at once."""
        return self._code in TOO_LARGE

    @property
    def _code(self) -> int | None:
        return None if self.failure is None else self.failure.code
