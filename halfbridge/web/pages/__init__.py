"""The web page: server-rendered, works without a script; htmx only reloads parts of it."""
