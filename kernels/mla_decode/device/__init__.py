"""The NKI kernel, which runs on the device. Only documented NKI calls and Python that the NKI compiler accepts."""
