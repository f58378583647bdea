"""Tasks with their problems and demonstrations, tokenizers, and the resumable stream of prompts."""
