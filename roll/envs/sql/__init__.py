"""SQL: a question about a table, or a change to make, and a database."""
