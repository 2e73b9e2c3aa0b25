"""The op that answers a check: translates how the user's checker ended into the protocol."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.message import Answer, Resolution
from halfbridge.kafka.trouble import shown, tell
from halfbridge.serde.protocol import NO_CHECK
from halfbridge.serde.records import COUNT_UNKNOWN, Op, OpKind, OpSource

if TYPE_CHECKING:
    from halfbridge.bridge.check_pool import Outcome
    from halfbridge.serde.records import CheckRequest

_LOG = logging.getLogger("halfbridge.bridge")
_REASON_CHARS_MAX = 500  # of the text of an error or a return value; operators read the beginning


def answer_to(
    request: CheckRequest,
    outcome: Outcome[Any],
    *,
    half_offset: int,
    now_ms: int,
    actor: str,
    timeout_ms: int,
    traceback: BaseException | None = None,
) -> Op:
    """Return the op that answers a check.

    Only an explicit answer counts. Any other outcome is logged, and the op carries the reason.

    Args:
        request: The check.
        outcome: How the checker ended.
        half_offset: Last offset of the half partition, asked after the checker returned.
        now_ms: The time, ms since 1970.
        actor: Who answers.
        timeout_ms: Time that the checker had.
        traceback: The checker's exception, where the log is to have its traceback.
    """
    unknown = Op(
        transaction_id=request.transaction_id,
        timestamp=now_ms,
        half_offset=half_offset,
        resume_count=request.resume_count,
        producer_group=request.producer_group,
        kind=OpKind.UNKNOWN,
        message_count=COUNT_UNKNOWN,
        check_number=NO_CHECK,
        source=OpSource.CHECK,
        actor=actor,
        reason="",
    )
    answer = outcome.answer
    if isinstance(answer, Resolution):
        answer = Answer(answer)
    if isinstance(answer, Answer):
        kind, count = OpKind[answer.resolution.value], answer.message_count
        return unknown._replace(
            kind=kind,
            check_number=request.check_number,
            message_count=COUNT_UNKNOWN if count is None else count,
        )
    # Only an explicit UNKNOWN counts: a database that is down must not discard.
    if outcome.is_overdue:
        reason = f"checker still runs after {timeout_ms} ms"
    elif outcome.error is not None:
        reason = f"checker raised {shown(outcome.error)}"
    else:
        reason = f"checker returned {shown(answer)}, no Resolution"
    warn = partial(_LOG.warning, exc_info=traceback)
    tell(warn, "check of %s: %s", request.transaction_id, reason)
    return unknown._replace(reason=reason[:_REASON_CHARS_MAX])


def covered(request: CheckRequest) -> int:
    """Return the lowest half offset that an answer may name."""
    return max(0, request.half_offset, request.last_half_offset)
