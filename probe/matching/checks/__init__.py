"""Lines of a mapping that do nothing, or may be wrong."""
