"""How many of one unit of time or size are another one."""

from __future__ import annotations

MS_PER_S = 1_000  # SI and IEC 80000-13
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MINUTE_MS = 60 * MS_PER_S
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
KIB = 1024
MIB = 1024 * KIB
