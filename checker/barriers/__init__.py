"""Where half partitions end, proven by a write."""
