"""An OpenAI-compatible server in front of a run's generators, and agents that use it.

The policy samples the response to every request, and all tokens are recorded; agents need no change. The server starts
no model and trains nothing: like an episode, it samples through the router.
"""
