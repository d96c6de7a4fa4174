"""Vectorised environments, wrappers and presets."""

__version__ = "0.1.0"
