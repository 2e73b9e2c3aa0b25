"""The local transaction of `send_in_transaction`: the user's call, and the decision after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.bridge.message import Resolution, TransactionSendResult
from halfbridge.kafka.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.bridge.message import Message, SendReceipt
    from halfbridge.bridge.message_transaction import Transaction


class Ran(NamedTuple):
    """How a local transaction ended.

    Attributes:
        resolution: The user's answer; UNKNOWN if the user's code raised or returned no Resolution.
        remark: Why the resolution is UNKNOWN; empty if the user's code returned UNKNOWN.
        error: The exception of the user's code, or None.
    """

    resolution: Resolution
    remark: str = ""
    error: Exception | None = None


def run(local_transaction: Callable[[Message, Any], Resolution], message: Message, arg: Any) -> Ran:
    """Run a local transaction; an exception, or None in place of a Resolution, is UNKNOWN.

    Raises:
        TypeError: it returned a value of another type; its author corrects it. Nothing was decided.
    """
    try:
        answer: object = local_transaction(message, arg)
    except Exception as error:  # noqa: BLE001  (the user's code; its outcome is unknown)
        return Ran(Resolution.UNKNOWN, f"local transaction raised {error!r}", error)
    if isinstance(answer, Resolution):
        return Ran(answer)
    if answer is None:
        return Ran(Resolution.UNKNOWN, "local transaction returned None, no Resolution")
    raise TypeError(
        f"local transaction returned {answer!r}, and must return a Resolution or None; nothing was"
        " decided, and a check finds out how the local transaction ended"
    )


def decided(
    transaction: Transaction, receipt: SendReceipt, ran: Ran, timeout: float | None
) -> TransactionSendResult:
    """Send the decision of a local transaction, if it made one, and return the whole result."""
    decision = decision_error = None
    if ran.resolution is not Resolution.UNKNOWN:
        commits = ran.resolution is Resolution.COMMIT
        decide = transaction.commit if commits else transaction.rollback
        try:
            decision = decide(timeout)
        except BridgeError as caught:
            decision_error = caught
    return TransactionSendResult(
        receipt=receipt,
        resolution=ran.resolution,
        remark=ran.remark,
        error=ran.error,
        decision=decision,
        decision_error=decision_error,
    )
