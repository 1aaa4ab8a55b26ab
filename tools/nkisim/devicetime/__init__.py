"""Predicts when each recorded instruction would run on the device. All times are simulated."""
