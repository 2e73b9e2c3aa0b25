"""Change events as Debezium 3 writes them, in each form of its envelope."""

import json
from typing import Any

SOURCE: dict[str, Any] = {
    "version": "3.2.0.Final",
    "connector": "postgresql",
    "name": "shop",
    "ts_ms": 1_764_300_000_123,
    "snapshot": "false",
    "db": "shop",
    "sequence": '["24023128","24023128"]',
    "schema": "public",
    "table": "orders",
    "txId": 555,
    "lsn": 24023128,
    "xmin": None,
}
_SOURCE_SCHEMA = {
    "type": "struct",
    "fields": [
        {"type": "string", "optional": False, "field": "connector"},
        {"type": "int64", "optional": False, "field": "ts_ms"},
        {"type": "string", "optional": True, "default": "false", "field": "snapshot"},
    ],
    "optional": False,
    "name": "io.debezium.connector.postgresql.Source",
    "field": "source",
}


def envelope(op: str, *, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    """Return an envelope as the JSON converter writes it without schemas."""
    return {
        "before": before,
        "after": after,
        "source": {**SOURCE, "snapshot": "true" if op == "r" else "false", **source},
        "transaction": None,
        "op": op,
        "ts_ms": 1_764_300_000_456,
        "ts_us": 1_764_300_000_456_789,
        "ts_ns": 1_764_300_000_456_789_012,
    }


def plain(op: str, **rows: Any) -> bytes:
    """Return an event without a schema."""
    return json.dumps(envelope(op, **rows)).encode()


def with_schema(op: str, fields: list[dict[str, Any]], **rows: Any) -> bytes:
    """Return an event with its schema; `fields` are the columns, as Connect describes them."""
    row = {"type": "struct", "fields": fields, "optional": True, "name": "shop.public.orders.Value"}
    schema = {
        "type": "struct",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            _SOURCE_SCHEMA,
            {"type": "string", "optional": False, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
        ],
        "optional": False,
        "name": "shop.public.orders.Envelope",
        "version": 2,
    }
    return json.dumps({"schema": schema, "payload": envelope(op, **rows)}).encode()
