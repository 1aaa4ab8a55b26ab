"""The NKI kernel: what runs on the chip. Documented calls only, and only what a tracer can specialise."""
