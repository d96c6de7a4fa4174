"""Rollout and replay storages."""

__version__ = "0.1.0"
