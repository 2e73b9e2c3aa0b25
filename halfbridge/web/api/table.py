"""All routes of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.web.api import (
    audit_log,
    dead_letters,
    decisions,
    doctor,
    groups,
    overview,
    topics,
    transactions,
)

if TYPE_CHECKING:
    from halfbridge.web.api.routes import Route

ROUTES: tuple[Route, ...] = (
    *overview.ROUTES,
    *transactions.ROUTES,
    *decisions.ROUTES,
    *dead_letters.ROUTES,
    *groups.ROUTES,
    *topics.ROUTES,
    *doctor.ROUTES,
    *audit_log.ROUTES,
)
