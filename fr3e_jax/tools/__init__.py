"""Tools that a policy calls while it answers: how a call is recognised, what runs it, and what comes of it."""
