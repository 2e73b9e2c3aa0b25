"""What an operator reads of transactions: the undecided ones, one transaction's life, the groups.

Everything is read from the logs, beside running daemons or without them: committed records only, no
group is joined, nothing is committed. Modules that judge are pure: `life`, `waits`, `search`,
`explain`, `plain`, `group_facts`. Modules that read are given a `Cluster`: `look_up`, `find`,
`undecided`, `asked`, `groups`.
"""
