"""Will it fit, and how long at least: the programs of a recipe, compiled for hardware that is not there."""
