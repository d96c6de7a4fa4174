"""From drawn rows to batches: windows of steps, sequences, relabeled goals."""
