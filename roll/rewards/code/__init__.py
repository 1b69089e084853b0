"""The reward `code`: runs a response's code against the task's tests, in the sandbox."""
