"""`mla_decode`: DeepSeek-V3.2's sparse MLA decode attention over a paged cache."""
