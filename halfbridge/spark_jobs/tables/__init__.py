"""Tables that jobs write and read, with their files and checkpoints."""
