"""The numbers of one tensor: statistics, sketch, sums along axes; how parameters lie, and several in one."""
