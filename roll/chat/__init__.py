"""Language models that are talked to in words: the protocol, a fake, a client for servers. No engine is imported."""
