"""The replay buffer, and the rows that it keeps: `row_writer` has a picture of them."""
