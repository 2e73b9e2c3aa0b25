"""Which checks a fence may answer: those of transactions that began with the same fence table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from halfbridge.kafka.errors import NoAnswerError
from halfbridge.serde.avro import FENCE_CONTEXT
from halfbridge.serde.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

_UUID7 = re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")


class Fenced(Protocol):
    """What is known of a transaction that a fence is asked about; a MessageView is one."""

    @property
    def transaction_id(self) -> str:
        """The transaction id."""

    @property
    def producer_group(self) -> str:
        """The producer group."""

    @property
    def context(self) -> bytes | None:
        """What the sender left for its checker."""


def check_context(view: Fenced, *, producer_group: str, table_id: Callable[..., str]) -> None:
    """Refuse a transaction that was not begun with this fence: its missing row proves nothing.

    Args:
        view: The transaction that the check is about.
        producer_group: The fence's group.
        table_id: Returns the UUID of the fence's table; with anew=True, reads it from the database.

    Raises:
        NoAnswerError: The transaction was not begun with this fence; the text says why.
    """
    whose = f"{view.transaction_id} of {view.producer_group}"
    if view.producer_group != producer_group:
        raise NoAnswerError(f"{whose}: the fence is of group {producer_group}")
    if not _UUID7.fullmatch(view.transaction_id):
        raise NoAnswerError(f"{whose}: no id that halfbridge makes")
    if view.context is None:
        raise NoAnswerError(f"{whose} was begun without a fence: a missing row proves nothing")
    try:
        theirs = FENCE_CONTEXT.decode(view.context).table_id
    except DecodeError as error:
        raise NoAnswerError(f"{whose}: its context is of no fence: {error}") from error
    mine = table_id()
    if theirs != mine:
        mine = table_id(anew=True)
    if theirs != mine:
        raise NoAnswerError(f"{whose} is fenced by table {theirs}; this one is {mine}")
