"""Which rank is where: the groups that divide a run, and the files of its ranks."""
