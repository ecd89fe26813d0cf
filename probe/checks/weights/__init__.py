"""Two trained checkpoints, weight by weight: `check_weights`."""

from probe.checks.weights.checking import Weights, check_weights

__all__ = ["Weights", "check_weights"]
