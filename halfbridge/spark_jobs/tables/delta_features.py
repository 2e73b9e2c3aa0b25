"""What other engines may have made of a Delta table, and what these jobs can do with it then.

The jobs read a table's files as Parquet and add files to it; Delta's protocol has features with
which that is not enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Delta's protocol, Reader Requirements. 2: column mapping. 3: what is needed stands in a list.
_READER_VERSION_MAX = 3
_MAPPING = "delta.columnMapping.mode"
_VECTORS = "deletionVectors"
# Features that may be on while the files are all that counts: those of the log and of VACUUM, a
# type that Parquet has too, and two that `not_as_parquet` looks at.
_HARMLESS_FEATURES = frozenset(
    ("columnMapping", _VECTORS, "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck")
)


def not_as_parquet(table: DeltaTable) -> str:
    """Return what the files of a Delta table, read as Parquet, would not tell; empty: nothing.

    Another engine may have written it. What this version does not know counts as something.

    Raises:
        DeltaError: delta-rs cannot read it either; the user must act.
    """
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    if protocol.min_reader_version > _READER_VERSION_MAX:
        return f"reader version {protocol.min_reader_version}"
    if unknown := sorted(features - _HARMLESS_FEATURES):
        return f"the reader feature {unknown[0]}"
    metadata = table.metadata()
    if is_mapped(table):
        return "columns that are mapped to other names"
    if _VECTORS in features and any(batch.num_rows for batch in table.deletion_vectors()):
        return "rows that are deleted by deletion vectors"
    for uri in table.file_uris():
        if missing := [each for each in metadata.partition_columns if f"/{each}=" not in uri]:
            return f"files whose paths do not say their {missing[0]}"
    return ""


def is_mapped(table: DeltaTable) -> bool:
    """Tell whether columns have other names in files and log: then no file of ours can be added."""
    return table.metadata().configuration.get(_MAPPING, "none") != "none"
