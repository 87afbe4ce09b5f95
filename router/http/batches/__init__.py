"""Files and batches, as OpenAI's Batch API has them: kept in SQLite, computed at low priority."""
