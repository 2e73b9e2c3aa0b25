"""All routes of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.web.api import audit_log, dead_letters, overview, topics, transactions

if TYPE_CHECKING:
    from halfbridge.web.api.routes import Route

ROUTES: tuple[Route, ...] = (
    *overview.ROUTES,
    *transactions.ROUTES,
    *dead_letters.ROUTES,
    *topics.ROUTES,
    *audit_log.ROUTES,
)
