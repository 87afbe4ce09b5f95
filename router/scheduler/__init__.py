"""Which sequence computes which tokens in which blocks: no async, clock, I/O or text."""
