"""Writing a recording: what was committed survives whatever happens next."""
