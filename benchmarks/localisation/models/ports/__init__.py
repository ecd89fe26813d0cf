"""Ports of models to other structures and other code bases, the mappings between both, and how weights are converted."""
