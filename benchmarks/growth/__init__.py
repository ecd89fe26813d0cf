"""How time and memory of comparing and of recording grow with modules, steps and bytes."""
