"""On-policy actor and algorithms."""

__version__ = "0.1.0"
