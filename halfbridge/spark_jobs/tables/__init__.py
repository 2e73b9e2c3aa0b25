"""Tables that jobs write and read, and the files and checkpoints beside them."""
