"""What differs by more than rounding and is no fault."""
