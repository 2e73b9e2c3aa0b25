"""Where jars come from, and how their classes are kept, as the environment says it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (get_type_hints reads it)

from halfbridge.serde.settings import setting, variable

CACHE_VARIABLE = variable("cache_dir")
SETTINGS_VARIABLE = variable("ivy_settings")
JARS_VARIABLE = variable("spark_jars")


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSettings:
    """Settings of whatever needs jars: Spark, and the embedded broker."""

    cache_dir: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="Directory of fetched jars; default: halfbridge in the XDG cache directory."
    )
    ivy_settings: str | None = setting(None, doc="Ivy settings file, such as one with a mirror.")
    maven_repository: str | None = setting(
        None, doc="Address of the Maven repository that has the embedded broker's jars."
    )
    class_archives: bool = setting(
        default=True,
        words=("off", "on"),
        doc="Whether JVMs start from class data archives, which are kept in the cache directory.",
    )
    spark_jars: Path | None = setting(  # noqa: RUF009 (a field, not a shared default)
        None, doc="Directory of the Spark connector's jars, in place of the pinned ones."
    )
