"""Everything that touches Kafka: the ports, the client library behind them, errors by who must act.

Only `adapter` and what it imports use the client library, clocks and threads; the other modules run
on the broker in memory as well. Importing the package loads none.
"""
