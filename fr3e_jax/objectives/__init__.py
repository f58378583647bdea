"""The mathematics of exploration and policy updates, as pure functions on arrays, one subject a module.

No jit, no random state, no configuration, no input or output: callers bring arrays and static settings. All functions
work under `jax.jit`, `jax.vmap` and `jax.grad`, in float32, except those whose docstring says "on the host". Import
them from their module: ``from fr3e_jax.objectives.losses import clipped_surrogate``.
"""
