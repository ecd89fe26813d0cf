"""What was compared, what was not, and why an answer says less than it seems to."""
