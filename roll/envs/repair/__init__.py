"""Software repair: a faulty program, its tests, and tools to read it, edit it and run the tests in the sandbox."""
