"""Routing replay: routers take the choices of another recording."""
