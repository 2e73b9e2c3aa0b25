"""The daemon: delivers what was committed, asks about what was never decided."""

from __future__ import annotations

from halfbridge.bridge.log_text import keep_to_one_line

keep_to_one_line("halfbridge.checker", "halfbridge.supervisor")
