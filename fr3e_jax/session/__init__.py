"""Opening a run: its model, texts, task, sampler, and identity."""
