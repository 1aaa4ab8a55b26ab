"""Plans of a call: schedule, memory map, bytes; and the policies that choose among them."""
