"""``python -m fr3e_jax`` is ``fr3e``."""

try:
    from fr3e_jax.cli import main
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("fr3e_jax"):
        raise
    raise SystemExit(
        f"fr3e: error: the package {error.name} is missing; install what fr3e_jax needs: `pip install -e .` in its "
        "checkout, or `make demo`, which does so in .venv (then the command is .venv/bin/fr3e)"
    ) from None

if __name__ == "__main__":  # worker processes import this module again
    raise SystemExit(main())
