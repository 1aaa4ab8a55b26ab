"""Bench of `adaln_quant`."""
