"""Which rows are drawn: uniformly, by priority, or mostly recent ones."""
