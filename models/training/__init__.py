"""Trains the bundled model from nothing, on text that this package generates itself.

`python -m models.training` makes the tokenizer, trains, evaluates and writes `models/demo`.
"""
