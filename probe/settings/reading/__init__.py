"""Reading a configuration, whatever it stands in."""
