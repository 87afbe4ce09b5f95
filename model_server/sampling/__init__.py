"""From a step's logits to one token for each row: processors, filters, draws, log-probabilities."""
