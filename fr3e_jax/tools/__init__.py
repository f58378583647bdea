"""Tools that a policy calls while it answers: recognising a call, running it, and returning the answer."""
