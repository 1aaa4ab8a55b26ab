"""What stands between a caller's tensors and the kernel: arguments and their rules, launch, torch ops, packing."""
