"""The references in fp64, the named cases and the comparisons that tests and benches share."""
