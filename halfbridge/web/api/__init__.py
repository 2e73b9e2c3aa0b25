"""The API under /api/v1: a table of routes, of which the server and /openapi.json are made."""
