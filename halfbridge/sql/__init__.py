"""Local transactions in SQL databases: `from halfbridge.sql import Fence`.

Names are imported when they are first used, because SQLAlchemy comes with the extra `sql` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.lazy import lazy_names

if TYPE_CHECKING:
    from halfbridge.sql.aio import AsyncFence, AsyncInbox
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

__all__ = [
    "AsyncFence",
    "AsyncInbox",
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

_MODULES = (
    "halfbridge.sql.errors",
    "halfbridge.sql.fence",
    "halfbridge.sql.inbox",
    "halfbridge.sql.local_messages.config",
    "halfbridge.sql.local_messages.rows",
    "halfbridge.sql.local_messages.settling",
    "halfbridge.sql.local_messages.writer",
    "halfbridge.sql.local_messages.relay",
    "halfbridge.sql.local_messages.service",
    "halfbridge.sql.aio",
)
__getattr__, __dir__ = lazy_names(__name__, _MODULES, __all__)
