"""What a pass says: which of B's modules are wrong by themselves, and how much of an error is rounding."""
