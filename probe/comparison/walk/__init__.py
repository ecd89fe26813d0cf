"""Walking a step in causal order: weights, inputs, forward, loss, backward, gradients, updates."""
