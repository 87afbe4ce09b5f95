"""Tandem for programs: a client, and a query language on top of it. It imports no server."""
