"""Chat access to language models: the protocol, a fake, and a client for servers. Imports no engine."""
