"""What the optimizers of both sides did, by their settings and by the numbers."""
