"""Networks: extractors, recurrent cells, action heads and distributions."""
