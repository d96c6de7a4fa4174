"""Vector environments, stepped in this process, in others, or by Gymnasium and EnvPool."""
