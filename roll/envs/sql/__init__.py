"""SQL: a question about a table or a change to make to it, and a database to do it with."""
