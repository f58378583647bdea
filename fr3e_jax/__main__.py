"""``python -m fr3e_jax`` is ``fr3e``."""

from fr3e_jax.cli import main

if __name__ == "__main__":  # worker processes import this module again
    raise SystemExit(main())
