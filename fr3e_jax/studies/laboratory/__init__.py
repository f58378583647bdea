"""Experiments on a stored run or a model: interventions, gradient noise, and token updates."""
