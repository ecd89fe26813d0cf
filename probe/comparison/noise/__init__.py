"""How much of an error is noise: the built-in model, measured floors, tolerances of the user's."""
