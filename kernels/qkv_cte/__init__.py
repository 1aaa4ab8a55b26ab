"""`qkv_cte`: the QKV projection of the Wan2.2 DiT."""
