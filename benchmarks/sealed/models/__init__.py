"""The models, by subject."""
