"""How large an error is that rounding explains."""
