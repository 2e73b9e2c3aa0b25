"""The daemon's processes: supervisor, workers, slots, signals, and the port that shows metrics."""
