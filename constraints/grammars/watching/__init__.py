"""What a mask has to remember of a JSON text: the items that differ, the keys that are counted."""
