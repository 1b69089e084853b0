"""Tools that a policy may call: protocol, shipped tool sets, and the toolkit of one attempt."""
