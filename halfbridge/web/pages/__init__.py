"""The web page: server-rendered, works without a script; htmx only loads parts of it anew."""
