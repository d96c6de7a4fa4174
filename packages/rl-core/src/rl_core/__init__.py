"""Contracts, data types, networks, estimators and the training loop."""

__version__ = "0.1.0"
