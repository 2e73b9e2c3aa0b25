"""Dead letters as JSON: for `--json`, for export, and back from a file that was repaired. Pure."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING

from halfbridge.checker.admin.dead.letters import Body, ReplacementMessage
from halfbridge.serde.avro import DeadMark
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import RESERVED, user_headers
from halfbridge.serde.limits import TOPIC_CHARS_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_MESSAGES_MAX
from halfbridge.serde.records import PARTITION_BY_KEY

if TYPE_CHECKING:
    from halfbridge.checker.admin.dead.letters import DeadTransaction, ExaminedLetter, Letter
    from halfbridge.checker.admin.dead.redoing import Change
    from halfbridge.serde.avro import DeadMark

# A line of a file: a message of the largest size in base64, and as much again for its headers.
LINE_CHARS_MAX = 4 * TRANSACTION_BYTES_MAX
_INT_MAX = (1 << 31) - 1  # an int32, as Kafka numbers partitions


def as_json(transaction: DeadTransaction) -> dict[str, object]:
    """Return a transaction with its letters, without payloads."""
    key = transaction.key
    return {
        "id": transaction.name,
        "producer_group": key.producer_group if key.transaction_id else None,
        "resume_count": key.resume_count if key.transaction_id else None,
        "state": transaction.state,
        "remedy": transaction.remedy.value,
        "reasons": [each.value for each in transaction.reasons],
        "topics": list(transaction.topics),
        "stored_ms": transaction.stored_ms,
        "messages": len(transaction.letters),
        "bytes": sum(each.size_bytes for each in transaction.letters),
        "letters": [
            letter_json(each, transaction.marks.get(each.place)) for each in transaction.letters
        ],
    }


def letter_json(letter: Letter, mark: DeadMark | None) -> dict[str, object]:
    """Return a letter without its payload."""
    half, dead = letter.half, letter.dead
    return {
        "partition": letter.place.partition,
        "offset": letter.place.offset,
        "stored_ms": letter.stored_ms,
        "reason": letter.reason.value,
        "detail": dead.detail,
        "decision": letter.decision.value,
        "decided_ms": dead.decided_timestamp,
        "check_times": dead.check_times,
        "op_offset": dead.op_offset,
        "source": {
            "topic": dead.source_topic,
            "partition": dead.source_partition,
            "offset": dead.source_offset,
        },
        "is_stub": dead.is_stub,
        "bytes": letter.size_bytes,
        "message_index": None if half is None else half.message_index,
        "real_topic": None if half is None else half.real_topic,
        "real_partition": None if half is None else half.real_partition,
        "born_ms": None if half is None else half.born_timestamp,
        "mark": None if mark is None else mark_json(mark),
    }


def mark_json(mark: DeadMark) -> dict[str, object]:
    """Return the state of a letter, as JSON values."""
    return {
        "action": mark.action.value,
        "resume_count": mark.resume_count,
        "at_ms": mark.timestamp,
        "actor": mark.actor,
        "reason": mark.reason,
    }


def exported(transaction: DeadTransaction, examined: ExaminedLetter) -> dict[str, object]:
    """Return a letter with its payload in base64, which `given` reads; without it where it is gone.

    Headers are the user's; of a record whose RMQ_HALF cannot be read, all.
    """
    letter, body = examined.letter, examined.body
    fields = {
        "transaction_id": transaction.key.transaction_id,
        "producer_group": as_json(transaction)["producer_group"],
        "resume_count": as_json(transaction)["resume_count"],
        **letter_json(letter, transaction.marks.get(letter.place)),
        "standing": examined.standing.name,
    }
    if body is None:
        return {**fields, "is_gone": True}
    headers = body.headers if letter.half is None else user_headers(body.headers)
    return {
        **fields,
        "key": _text(body.key),
        "value": _text(body.value),
        "headers": [[name, _text(value)] for name, value in headers],
    }


def change_json(change: Change) -> dict[str, object]:
    """Return the (planned) change to a transaction, as JSON values."""
    transaction = change.transaction
    common = {
        "id": transaction.name,
        "producer_group": transaction.key.producer_group,
        "resume_count": transaction.key.resume_count,
    }
    if change.refusal:
        return {**common, "why": change.refusal}
    return {**common, "new_resume_count": change.resume_count, "messages": list(change.indices)}


def given(line: str) -> tuple[tuple[str, int], ReplacementMessage]:
    """Return the message of an exported line, with its id and index.

    Raises DecodeError: it is none; the operator corrects the line.
    """
    if len(line) > LINE_CHARS_MAX:
        raise DecodeError(f"more than {LINE_CHARS_MAX} characters", None)
    try:
        fields = json.loads(line)
        headers = [(str(name), _bytes(value)) for name, value in fields["headers"]]
        body = Body(_bytes(fields["key"]), _bytes(fields["value"]), headers)
        partition = fields.get("real_partition", PARTITION_BY_KEY)
        message = ReplacementMessage(fields["real_topic"], partition, body)
        identity = fields["transaction_id"], fields["message_index"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DecodeError(f"not as `dead export` writes it: {error!r}", None) from error
    _check(identity, message)
    return identity, message


def _check(identity: tuple[object, object], message: ReplacementMessage) -> None:
    """Raise DecodeError unless the texts and numbers of a line can be written."""
    transaction_id, index = identity
    topic: object = message.real_topic
    partition: object = message.real_partition
    body = message.body
    problems = {
        "transaction_id": not (isinstance(transaction_id, str) and transaction_id),
        "message_index": not (type(index) is int and 0 <= index < TRANSACTION_MESSAGES_MAX),
        "real_topic": not (isinstance(topic, str) and 0 < len(topic) <= TOPIC_CHARS_MAX),
        "real_partition": not (type(partition) is int and PARTITION_BY_KEY <= partition < _INT_MAX),
        "headers (a reserved name)": any(name in RESERVED for name, _ in body.headers),
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise DecodeError(f"{wrong[0]} is not allowed", None)


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode("ascii")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text, validate=True)
