"""Running programs that nobody trusts: a program and its limits in, what became of it out."""
