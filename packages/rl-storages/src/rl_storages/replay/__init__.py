"""The replay buffer, and the rows that it keeps."""
