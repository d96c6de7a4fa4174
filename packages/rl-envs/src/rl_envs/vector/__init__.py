"""Vector environments: stepped in this process, in processes of their own, by Gymnasium or EnvPool."""
