"""A comparison of curves as text, rows, pictures."""
