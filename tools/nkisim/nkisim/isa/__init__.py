"""The instructions of `nki.isa`, one module per kind.

Each call checks its operands once per combination of signatures, records itself, and computes its values unless the
run is timing-only.
"""
