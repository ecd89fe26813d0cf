"""Checks that need no trusted side: one recording, or what two runs start from, looked at for what is wrong by itself."""
