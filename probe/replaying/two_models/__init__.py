"""Two models in one call: recorded in one process or two, and compared."""
