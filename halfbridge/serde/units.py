"""How many of one unit of time are another one."""

from __future__ import annotations

MS_PER_S = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
