"""What can go wrong between the loop and Kafka. In each case the ledgers are dropped.

InputLostError          records may be gone that were taken: read again from the offsets
KafkaTxnFailedError     a kafka_txn did not happen, or may have happened; producers are replaced
"""

from __future__ import annotations


class InputLostError(Exception):
    """consume() failed: records may be gone that it had taken; read again from the offsets."""


class KafkaTxnFailedError(Exception):
    """A kafka_txn did not happen, or may have happened.

    Attributes:
        fenced: Another producer took the id over, or the broker timed the kafka_txn out.
        topic: Topic of the record that is refused; empty when not known.
        permanent: The broker refuses something in the batch for good.
        topic_refused: It refuses everything of this daemon on a topic: `topic`, if that is known.
        untimely: It refuses a timestamp.
        too_large: It refuses a size: of one record, or of several that were sent at once.
    """

    def __init__(
        self,
        text: str,
        *,
        fenced: bool = False,
        topic: str = "",
        permanent: bool = False,
        topic_refused: bool = False,
        untimely: bool = False,
        too_large: bool = False,
    ) -> None:
        super().__init__(text)
        self.fenced = fenced
        self.topic = topic
        self.permanent = permanent
        self.topic_refused = topic_refused
        self.untimely = untimely
        self.too_large = too_large
