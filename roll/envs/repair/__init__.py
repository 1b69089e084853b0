"""Software repair: a faulty program, tests, and tools to read it, to edit it and to run them in the sandbox."""
