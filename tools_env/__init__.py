"""Sandboxed tools for agents: what they are (`spec`, `catalogue`), where they run (`sandbox`, `synthetic`), and the
checking of what an agent left behind (`verify`). Knows nothing of rollouts."""
