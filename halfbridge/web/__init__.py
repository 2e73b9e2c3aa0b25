"""The operator's side over HTTP: an API under /api/v1, and a web page.

`halfbridge web` runs it as a process of its own. `halfbridge checker run --admin-port` starts the
same process next to the daemon, so that no request takes time of a worker's interpreter.

Every route calls the same library functions as the command of the same name (`checker/admin`).
"""
