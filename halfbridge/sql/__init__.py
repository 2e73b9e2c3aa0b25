"""Local transactions in SQL databases: `from halfbridge.sql import Fence`.

Names are imported when they are first used, because SQLAlchemy comes with the extra `sql` only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfbridge.sql.errors import (
        CommitUnknownError,
        FencedError,
        FenceUsageError,
        InboxUsageError,
        NoIdentityError,
        NotDurableError,
        Outcome,
        PurgeError,
        SqlError,
        TableError,
        TransactionEndedError,
    )
    from halfbridge.sql.fence import Fence
    from halfbridge.sql.inbox import Inbox, Marks
    from halfbridge.sql.local_messages.config import RelayConfig
    from halfbridge.sql.local_messages.relay import Relay
    from halfbridge.sql.local_messages.rows import RowNotFoundError, RowStateError
    from halfbridge.sql.local_messages.service import RelayService
    from halfbridge.sql.local_messages.settling import PreparedMessage
    from halfbridge.sql.local_messages.writer import LocalMessages

HINT = "SQLAlchemy is not installed: pip install 'halfbridge[sql]' brings it, with drivers"

_HOMES = {
    "halfbridge.sql.errors": (
        "CommitUnknownError",
        "FenceUsageError",
        "FencedError",
        "InboxUsageError",
        "NoIdentityError",
        "NotDurableError",
        "Outcome",
        "PurgeError",
        "SqlError",
        "TableError",
        "TransactionEndedError",
    ),
    "halfbridge.sql.fence": ("Fence",),
    "halfbridge.sql.inbox": ("Inbox", "Marks"),
    "halfbridge.sql.local_messages.config": ("RelayConfig",),
    "halfbridge.sql.local_messages.rows": ("RowNotFoundError", "RowStateError"),
    "halfbridge.sql.local_messages.relay": ("Relay",),
    "halfbridge.sql.local_messages.service": ("RelayService",),
    "halfbridge.sql.local_messages.settling": ("PreparedMessage",),
    "halfbridge.sql.local_messages.writer": ("LocalMessages",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CommitUnknownError",
    "Fence",
    "FenceUsageError",
    "FencedError",
    "Inbox",
    "InboxUsageError",
    "LocalMessages",
    "Marks",
    "NoIdentityError",
    "NotDurableError",
    "Outcome",
    "PreparedMessage",
    "PurgeError",
    "Relay",
    "RelayConfig",
    "RelayService",
    "RowNotFoundError",
    "RowStateError",
    "SqlError",
    "TableError",
    "TransactionEndedError",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name != "sqlalchemy":
            raise
        raise ModuleNotFoundError(HINT, name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
