"""The verbs beside training: ``sft``, ``rft``, ``sample`` and ``export``, one function each.

Arguments of the command line do not belong here (`cli/`), and neither does the training loop (`loop/train.py`).
Open `sample.py` first: it is the shortest path from settings to tokens.
"""
