"""Reads transactions for operators: the undecided ones, the life of one, and the producer groups.

All of it comes from committed records of the logs. No group is joined and nothing is committed, so
the commands work with and without running daemons. `life`, `waits`, `explain` and `plain` are pure;
`look_up`, `find`, `undecided`, `asked` and `groups` read from a `Cluster`.
"""
