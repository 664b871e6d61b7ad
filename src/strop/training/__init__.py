"""Training: the step, the loop, checkpoints, the field cache, several processes."""
