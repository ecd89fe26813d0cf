"""How weights of paired modules correspond: layouts, packed rows, other names."""
