"""The compiled and sharded programs of decoding, scoring and training: the only room that calls `jax.jit`.

Files, tokenizers and clocks do not belong here: a program gets arrays and returns arrays.
Open `decoder_programs.py` and `train_programs.py` first: all programs of decoding and of training are declared there.
"""
