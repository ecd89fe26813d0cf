"""What can be planted into one side of a pair, by the phase in which it is first seen."""
