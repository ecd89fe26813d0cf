"""The models of the blind test set, by subject. Each module has a tuple MODELS."""
