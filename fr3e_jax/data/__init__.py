"""Tasks, their problems and demonstrations, tokenizers, and the resumable order in which prompts are drawn."""
