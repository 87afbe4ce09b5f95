"""`where` clauses: terms about holes, the constraint for the server, the checks afterwards."""
