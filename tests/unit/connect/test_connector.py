"""What the configuration of a connector has, whatever the database."""

import pytest
from sqlalchemy import make_url

from halfbridge.connect.connector import ConnectorPlan, connector_config
from halfbridge.connect.tables import Table

MIB = 1 << 20
PLAN = ConnectorPlan("shop", (Table("shop", "orders"),), bootstrap_servers="kafka:9092")


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb", "mysql"])
def test_memory_for_rows_has_a_bound_in_bytes(dialect: str) -> None:
    """Large rows fill neither the heap of a worker nor the queue to its limit of rows."""
    config = connector_config(make_url(f"{dialect}://shop@db/shop"), dialect, PLAN)
    assert int(config["max.queue.size.in.bytes"]) == 64 * MIB


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb", "mysql"])
def test_null_is_not_replaced_with_a_default(dialect: str) -> None:
    """Kafka Connect's converter does that unless it is configured not to."""
    config = connector_config(make_url(f"{dialect}://shop@db/shop"), dialect, PLAN)
    for part in ("key", "value"):
        assert config[f"{part}.converter.replace.null.with.default"] == "false"
