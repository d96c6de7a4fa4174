"""Critics: ensembles of action-value functions."""
