"""Values inside the code of modules, which no hook reaches."""
