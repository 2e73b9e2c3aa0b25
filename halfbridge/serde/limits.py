"""Limits on the size of records: constants of the protocol, equal for every reader.

The client refuses larger records early. Every reader (daemon, rebuild, `checker init`, audit,
simulator) judges records by these limits, whatever wrote them, so that all judge alike.
"""

from __future__ import annotations

# Bytes of the value of RMQ_HALF, and of RMQ_CONTEXT. The longest RMQ_HALF that a client writes has
# two names of 249 characters (Kafka's limit of a topic's name) and is below 700.
METADATA_BYTES_MAX = 4096
# Bytes of RMQ_HALF of an original: a copy of it adds up to 26 bytes of numbers.
ORIGINAL_METADATA_BYTES_MAX = METADATA_BYTES_MAX - 64
# Bytes of the value of RMQ_SIGN: a key id of 64 characters, a time, and 64 bytes of signature.
SIGNATURE_BYTES_MAX = 256
# Bytes in UTF-8 of transaction id and producer group together. The daemon repeats them in a DISCARD
# of at most OP_BYTES_MAX, with its own name, a reason and numbers.
IDENTITY_BYTES_MAX = 3_000
# Bytes of the value of an op record that holds one decision: IDENTITY_BYTES_MAX, a name, a reason
# of 512 bytes and numbers fit.
OP_BYTES_MAX = 4096
# RocketMQ allows one message a transaction; the bounds keep one kafka_txn of the daemon small.
TRANSACTION_MESSAGES_MAX = 1_000
# Bytes of key, value, and the user's headers (names in UTF-8 and values) of all its messages: eight
# of Kafka's default largest size, or TRANSACTION_MESSAGES_MAX of 8 KiB.
TRANSACTION_BYTES_MAX = 8 * 1024 * 1024
# Bytes in UTF-8 of the text that says why a record is a dead letter. Longer ones are cut: they only
# repeat error texts, and each letter carries one.
DETAIL_BYTES_MAX = 1024
# A dead letter that only refers to its record: RMQ_HALF, RMQ_DEAD (detail, the topic's name of at
# most 249 characters, numbers), their names and the record's frame.
STUB_BYTES_MAX = METADATA_BYTES_MAX + DETAIL_BYTES_MAX + 512
# Kafka's limit of a topic's name. A longer name in a record is no topic's, now or ever.
TOPIC_CHARS_MAX = 249
# Replaces the text that `shortened` cuts off.
_CUT = " ... (cut)"


def shortened(text: str, bytes_max: int = DETAIL_BYTES_MAX) -> str:
    """Return `text`, cut to `bytes_max` bytes in UTF-8; lone surrogates become escapes."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > bytes_max:
        data = data[: bytes_max - len(_CUT)]
        return data.decode("utf-8", "ignore") + _CUT
    return data.decode()
