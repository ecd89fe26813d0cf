"""What was compared, what was not, and how far the verdict is from another one."""
