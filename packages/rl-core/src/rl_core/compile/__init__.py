"""Functions of tensors, compiled: traced as graphs, made into libraries, called without guards."""
