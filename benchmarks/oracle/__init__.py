"""What every comparison of the localisation benchmark answers, by two versions of the engine, on the same recordings."""
