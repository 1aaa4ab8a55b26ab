"""The bench of `mla_decode`."""
