"""An address that speaks the OpenAI protocol in front of a run's generators, and agents that only know such an address.

What an agent asks there is sampled by the policy and written down token by token; the agent need not change. The server
never starts a model and never trains: it asks the router, as an episode does.
"""
