"""Spark sessions, and the Java and jars that they need; the embedded broker needs both too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfbridge.spark_jobs.session.local import spark_session

__all__ = ["spark_session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from halfbridge.spark_jobs.session import local  # noqa: PLC0415 (pyspark may not be installed)

    return getattr(local, name)
