"""The daemon: delivers committed messages, and asks about undecided transactions."""

from __future__ import annotations

from halfbridge.logs import keep_to_one_line

keep_to_one_line("halfbridge.checker", "halfbridge.supervisor")
