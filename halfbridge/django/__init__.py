"""Message transactions on Django's connections, an app for INSTALLED_APPS: docs/how-to/django.md.

The setting HALFBRIDGE is a dict: alias of a database -> arguments of TransactionProducer. Names are
imported when they are first used, because Django imports this package before its settings are
ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.lazy import lazy_names

if TYPE_CHECKING:
    from halfbridge.django.blocks import inbox_transaction, message_transaction, once
    from halfbridge.django.process import fence, producer

__all__ = ["fence", "inbox_transaction", "message_transaction", "once", "producer"]

__getattr__, __dir__ = lazy_names(
    __name__, ("halfbridge.django.process", "halfbridge.django.blocks"), __all__
)
