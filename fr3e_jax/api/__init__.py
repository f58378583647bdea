"""The way in from Python: train with a user's functions, sample and branch with a policy, read what a run stored."""
