"""Measurements of the project itself: suites of loads, steps of a transaction, other systems.

In the repository only. The bench that users have too, and that these use, is halfbridge/bench.
"""
