"""What `halfbridge bench` runs: one load, by client, daemon and consumer as processes of their own.

Users have it, to measure their cluster. What measures the project itself is in benchmarks/.
"""
