"""The functions of `nki.language`, one module per kind."""
