"""Memory and least time of a recipe's programs, compiled for hardware that is not there."""
