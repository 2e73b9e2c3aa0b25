"""The old place of side threads."""

from halfbridge.bridge.threads import SideThread, Threads

__all__ = ["SideThread", "let_go"]

let_go = Threads.let_go
