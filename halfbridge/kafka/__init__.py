"""Everything that touches Kafka: the ports, the client library behind them, errors by who must act.

`adapter` and what it imports use the client library, clocks and threads. The other modules ask
nothing but the ports and run on the broker in memory as well. Importing the package loads none.
"""
