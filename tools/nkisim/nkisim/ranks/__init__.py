"""Ranks that meet: all of them in this process, or one in each process."""
