"""The daemon: delivers what was committed, asks about what was never decided."""
