"""The bench of `qkv_cte`: commands that plan, simulate, check and measure it."""
