"""Several models behind one address: which are loaded, and who is asked for what."""
