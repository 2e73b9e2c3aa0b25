"""Commands of operators: create topics, check them, read the logs, decide, reset a partition."""
