"""Databases behind the proxy: the errors of clients, and the rows of the database."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.kit.proxy_tcp import Act
from tests.sql.databases import ProxiedDatabase


@pytest.mark.parametrize(("act", "there"), [(Act.STRAND, [1]), (Act.REFUSE, [])])
def test_a_commit_whose_outcome_the_client_does_not_learn(
    proxied_database: ProxiedDatabase, act: Act, there: list[int]
) -> None:
    """A commit that arrived and one that did not raise the same error."""
    with proxied_database.engine().begin() as connection:
        connection.execute(text("CREATE TABLE numbers (number INTEGER PRIMARY KEY)"))
    proxied_database.proxy.aim(act, proxied_database.commit_text)
    with proxied_database.engine().connect() as connection:
        connection.execute(text("INSERT INTO numbers VALUES (1)"))
        with pytest.raises(DBAPIError) as caught:
            connection.commit()
        assert caught.value.connection_invalidated
        connection.invalidate()
    assert proxied_database.proxy.hits(act) == 1
    with proxied_database.admin_engine().connect() as connection:
        table = text("SELECT number FROM numbers")
        assert list(connection.scalars(table)) == there


def test_a_black_hole_leaves_only_time_outs(proxied_database: ProxiedDatabase) -> None:
    """A new connection is accepted and never answered; healed, one works again."""
    # PyMySQL's connect_timeout ends with the TCP connection, before the server's greeting.
    limit = "connect_timeout" if proxied_database.name == "postgresql" else "read_timeout"
    impatient = proxied_database.engine(connect_args={limit: 2})
    proxied_database.proxy.blackhole()
    with pytest.raises(DBAPIError), impatient.connect():
        pass
    proxied_database.proxy.heal()
    with impatient.connect() as connection:
        assert connection.scalar(text("SELECT 1")) == 1
