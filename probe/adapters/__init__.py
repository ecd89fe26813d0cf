"""What is particular to a framework, one adapter each."""
