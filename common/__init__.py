"""Tiling and budget: hardware facts, tiles, memory ledgers, the schedule choice and ROW_MX packing.

Import its modules: `from common import hardware, tiling, budget, schedule, row_mx`. Only `row_mx` needs
torch.
"""
