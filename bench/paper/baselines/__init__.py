"""The case studies as one writes them over `generate()`: decode a chunk, look, cut, go on."""
