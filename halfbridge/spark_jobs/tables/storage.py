"""Files of a job's own, on whatever file system Spark's paths lead to: local, HDFS, S3."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.spark_jobs.capabilities import java_class
from halfbridge.spark_jobs.errors import JobError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"
_FILE_MANAGERS = (
    f"{_STREAMING}.checkpointing.CheckpointFileManager",
    f"{_STREAMING}.CheckpointFileManager",
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def absolute(path: str) -> str:
    """Return `path` as Spark and others understand it alike: a URI, or an absolute local path."""
    return path if _SCHEME.match(path) else str(Path(path).expanduser().absolute())


def join(directory: str, *names: str) -> str:
    """Return the path of something below `directory`."""
    return "/".join((directory.rstrip("/"), *names))


def jvm_of(spark: SparkSession) -> JVMView:
    """Return the door to the driver's JVM.

    Raises JobError: a Spark Connect client has none; the user runs the job elsewhere.
    """
    try:
        jvm = spark._jvm  # noqa: SLF001  # the only way to Hadoop's file systems
    except AttributeError:
        jvm = None
    if jvm is None:
        raise JobError(
            "this job needs a driver of its own, which a Spark Connect client does not have: run"
            " it with `halfbridge spark` or spark-submit"
        )
    return jvm


class StoredFile(NamedTuple):
    """A file as it was listed."""

    path: str  # below the directory that was listed
    size_bytes: int
    modified_ms: int  # milliseconds since 1970
    status: JavaObject  # what Hadoop said of it


class Storage:
    """Reads and writes small files through Hadoop, with the session's credentials."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = jvm_of(spark)
        context = spark.sparkContext
        self._configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001  # as above

    def names(self, directory: str) -> list[str]:
        """Return the names in `directory`, sorted; none when it is not there."""
        path, system = self._at(directory)
        if not system.exists(path):
            return []
        return sorted(status.getPath().getName() for status in system.listStatus(path))

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or directory, be it empty."""
        where, system = self._at(path)
        found: bool = system.exists(where)
        return found

    def read(self, path: str) -> str | None:
        """Return the text of a file; None when it is not there."""
        where, system = self._at(path)
        if not system.exists(where):
            return None
        stream = system.open(where)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def create(self, path: str, text: str) -> None:
        """Write a file.

        Raises JobError: it exists, because another job was quicker; the user runs one job.
        """
        where, system = self._at(path)
        if system.exists(where):
            raise JobError(
                f"{path} was made by somebody else a moment ago: is another job running?"
            )
        stream = system.create(where, False)  # noqa: FBT003  # Java: do not overwrite
        try:
            stream.write(text.encode("utf-8"))
        finally:
            stream.close()

    def replace(self, path: str, text: str) -> None:
        """Write a file, in the place of the one that is there: all of it, or nothing.

        Done as Spark writes the files of a checkpoint: by a rename, or by the store's own means.
        """
        where, _ = self._at(path)
        files = java_class(self._jvm, *_FILE_MANAGERS)
        manager = files.create(where.getParent(), self._configuration)
        stream = manager.createAtomic(where, True)  # noqa: FBT003  # Scala: overwrite
        try:
            stream.write(text.encode("utf-8"))
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        where, system = self._at(path)
        system.delete(where, False)  # noqa: FBT003  # Java: recursive

    def remove_tree(self, directory: str) -> None:
        """Remove a directory and its content, if it is there."""
        where, system = self._at(directory)
        system.delete(where, True)  # noqa: FBT003  # Java: recursive

    def files(self, directory: str, suffix: str) -> list[StoredFile]:
        """Return all files below `directory` whose names end with `suffix`, by path."""
        path, system = self._at(directory)
        if not system.exists(path):
            return []
        root = system.getFileStatus(path).getPath().toString()
        listed = system.listFiles(path, True)  # noqa: FBT003  # Java: recursive
        found = []
        while listed.hasNext():
            status = listed.next()
            name = status.getPath().toString()
            if name.endswith(suffix):
                relative = name.removeprefix(root).lstrip("/")
                found.append(
                    StoredFile(relative, status.getLen(), status.getModificationTime(), status)
                )
        return sorted(found, key=lambda each: each.path)

    def parquet_rows(self, file: StoredFile) -> int:
        """Return how many rows a Parquet file says it has."""
        hadoop = self._jvm.org.apache.parquet.hadoop
        source = hadoop.util.HadoopInputFile.fromStatus(file.status, self._configuration)
        reader = hadoop.ParquetFileReader.open(source)
        try:
            rows: int = reader.getRecordCount()
        finally:
            reader.close()
        return rows

    def _at(self, path: str) -> tuple[JavaObject, JavaObject]:
        where = self._jvm.org.apache.hadoop.fs.Path(path)
        return where, where.getFileSystem(self._configuration)
