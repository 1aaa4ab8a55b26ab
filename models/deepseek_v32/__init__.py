"""DeepSeek-V3.2's decode layers on `kernels.mla_decode`."""
