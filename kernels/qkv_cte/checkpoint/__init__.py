"""Wan2.2 checkpoints in the layouts that the projections read."""
