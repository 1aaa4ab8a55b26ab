"""Arithmetic as the engines do it, on numpy arrays; knows nothing of tensors or machines."""
