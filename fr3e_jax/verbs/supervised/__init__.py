"""Fine-tuning on responses with a cross-entropy loss: the runs of ``fr3e sft`` and ``fr3e rft``."""
