"""`where` clauses: terms over holes, what is asked of the server, what is checked at the end."""
