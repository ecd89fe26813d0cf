"""Many ranks: their files as one recording."""
