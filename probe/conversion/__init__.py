"""Weights of one model as those of another: which becomes which, how each lies, files of them read and written."""

from probe.conversion.weights import convert_checkpoint, convert_weights, plan_for

__all__ = ["convert_checkpoint", "convert_weights", "plan_for"]
