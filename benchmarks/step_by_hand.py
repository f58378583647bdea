"""Whole training steps of FR3E and TreeRL as a user of transformers would write them.

`step.py` calls `by_hand` in a process of an environment that has transformers and torch, and not this package.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from step_peers import REWARDS, Marks


class ByHand:
    """FR3E on transformers: `generate` for the bases, its caches cut and copied for the branches, flattened training.

    Branches of near prefix lengths share a left-padded batch, and only tokens that train pass the head. As each batch
    is one update, its own log-probs are the old ones: no scoring pass.
    """

    def __init__(self, args):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(args.cores)
        torch.manual_seed(0)
        self.args, self.torch, self.reward = args, torch, REWARDS[args.reward]
        self.tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, attn_implementation="sdpa")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-4, weight_decay=0.0, foreach=True)
        self.pad, self.eos = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        self.rng = np.random.default_rng(0)
        self.options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "use_cache": True}
        self.options |= {"pad_token_id": self.pad, "eos_token_id": self.eos}

    def graded(self, ids, gold: str) -> float:
        return self.reward(self.tokenizer.decode(ids, skip_special_tokens=True), gold)

    def until_stop(self, ids) -> list[int]:
        ids = ids.tolist()
        return ids[: ids.index(self.eos) + 1] if self.eos in ids else ids

    def bases(self, rows):
        """Sample each prompt ``generations`` times: sequences, caches by layer, entropies of the sampled tokens."""
        torch, args = self.torch, self.args
        inputs = self.tokenizer([row["prompt"] for row in rows], return_tensors="pt", padding=True)
        out = self.model.generate(
            **inputs,
            max_new_tokens=args.tokens,
            num_return_sequences=args.generations,
            return_dict_in_generate=True,
            output_logits=True,
            **self.options,
        )
        entropies = torch.stack(
            [torch.distributions.Categorical(logits=step.float()).entropy() for step in out.logits], 1
        )
        caches = [(layer.keys, layer.values) for layer in out.past_key_values.layers]
        return inputs, out.sequences, caches, entropies

    def chosen(self, rows, inputs, sequences, entropies):
        """The anchors of the bases that are expanded, (row, base, prefix length), and the rewards of all bases.

        These are a correct and a wrong base of each prompt, or all of them for trees.
        """
        width, n = inputs.input_ids.shape[1], self.args.generations
        found, all_rewards = [], []
        for i, row in enumerate(rows):
            responses = [self.until_stop(ids) for ids in sequences[i * n : (i + 1) * n, width:]]
            rewards = np.array([self.graded(response, row["gold"]) for response in responses])
            all_rewards.append(rewards)
            kinds = [np.flatnonzero(kind) for kind in (rewards > 0.5, rewards <= 0.5)]
            for base in range(n) if self.args.tree else [int(self.rng.choice(kind)) for kind in kinds if len(kind)]:
                # A first token is none: its state is the bare prompt.
                own = entropies[i * n + base, 1 : len(responses[base])]
                count = min(self.args.anchors, len(own))
                if self.args.even:
                    at = [rank * (len(own) + 1) // (count + 1) for rank in range(1, count + 1)]
                else:
                    at = sorted((own.topk(count).indices + 1).tolist())
                found += [(i, i * n + base, width + one) for one in at]
        return found, all_rewards

    def branches(self, anchors, sequences, masks, caches):
        """Continue each prefix ``branches`` times from the copied cache: the tokens after it, by anchor."""
        torch, m, total = self.torch, self.args.branches, sequences.shape[1]
        order, per_batch = sorted(range(len(anchors)), key=lambda a: anchors[a][2]), max(1, 64 // m)
        found = [[] for _ in anchors]
        for first in range(0, len(order), per_batch):
            group = order[first : first + per_batch]
            prefixes = [anchors[a][2] for a in group]
            width = max(prefixes)
            ids = torch.full((len(group) * m, width), self.pad)
            mask = torch.zeros_like(ids)
            for j, a in enumerate(group):
                lanes, p, base = slice(j * m, (j + 1) * m), anchors[a][2], anchors[a][1]
                ids[lanes, width - p :] = sequences[base, :p]
                mask[lanes, width - p :] = masks[base, :p]
            layers = []
            for keys, values in caches:
                k = keys.new_zeros(len(group) * m, keys.shape[1], width - 1, keys.shape[3])
                v = torch.zeros_like(k)
                for j, a in enumerate(group):
                    lanes, p, base = slice(j * m, (j + 1) * m), anchors[a][2], anchors[a][1]
                    k[lanes, :, width - p :], v[lanes, :, width - p :] = (
                        keys[base, :, : p - 1],
                        values[base, :, : p - 1],
                    )
                layers.append((k, v))
            cache = cache_of(layers)
            out = self.model.generate(
                ids,
                attention_mask=mask,
                past_key_values=cache,
                max_new_tokens=total - min(prefixes),
                **self.options,
            )
            for j, a in enumerate(group):
                rows = out[j * m : (j + 1) * m, width : width + total - anchors[a][2]]
                found[a] = [self.until_stop(row) for row in rows]
        return found

    def update(self, sequences, masks, trained) -> None:
        """One clipped-surrogate step on flattened rows; ``trained`` has (base, prefix, new tokens, advantages)."""
        torch, micro = self.torch, self.args.micro or 16
        tokens = sum(len(new) for _, _, new, _ in trained)
        trained = sorted(trained, key=lambda row: row[1] + len(row[2]))
        self.optimizer.zero_grad(set_to_none=True)
        for first in range(0, len(trained), micro):
            rows = trained[first : first + micro]
            width = max(prefix + len(new) for _, prefix, new, _ in rows)
            ids, mask = torch.full((len(rows), width), self.pad), torch.zeros(len(rows), width, dtype=torch.long)
            loss, advantages = torch.zeros(len(rows), width, dtype=torch.bool), torch.zeros(len(rows), width)
            for r, (base, prefix, new, advantage) in enumerate(rows):
                end = prefix + len(new)
                ids[r, :prefix], mask[r, :prefix] = sequences[base, :prefix], masks[base, :prefix]
                ids[r, prefix:end], mask[r, prefix:end] = torch.tensor(new), 1
                loss[r, prefix:end], advantages[r, prefix:end] = True, torch.as_tensor(advantage, dtype=torch.float32)
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            hidden = self.model.model(ids, attention_mask=mask, position_ids=positions, use_cache=False)
            counts = loss[:, 1:]
            logits = self.model.lm_head(hidden.last_hidden_state[:, :-1][counts])
            logprobs = -torch.nn.functional.cross_entropy(logits, ids[:, 1:][counts], reduction="none")
            ratio, weights = torch.exp(logprobs - logprobs.detach()), advantages[:, 1:][counts]
            (-torch.minimum(ratio * weights, ratio.clamp(0.8, 1.28) * weights).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def step(self, rows) -> int:
        """One step on these prompts; the number of sampled tokens."""
        with self.torch.no_grad():
            inputs, sequences, caches, entropies = self.bases(rows)
            prompts = inputs.attention_mask.repeat_interleave(self.args.generations, 0)
            masks = self.torch.cat([prompts, self.torch.ones_like(sequences[:, prompts.shape[1] :])], 1)
            anchors, of_bases = self.chosen(rows, inputs, sequences, entropies)
            found = self.branches(anchors, sequences, masks, caches)
        del caches
        width, n, graded = inputs.input_ids.shape[1], len(sequences), []
        for (row, base, prefix), responses in zip(anchors, found, strict=True):
            texts = [sequences[base, width:prefix].tolist() + new for new in responses]
            graded.append(np.array([self.graded(ids, rows[row]["gold"]) for ids in texts]))
        estimate = self.tree if self.args.tree else self.fr3e
        trained = estimate(anchors, found, graded, of_bases, sequences, width)
        self.update(sequences, masks, whole_bases(trained, self.args.rollouts))
        return sum(len(self.until_stop(sequences[i, width:])) for i in range(n)) + sum(len(r) for f in found for r in f)

    def fr3e(self, anchors, found, graded, of_bases, sequences, width):
        """The explored rollouts, each against its state, scaled by the state's gain over the one before."""
        trained, before = [], {}
        for (row, base, prefix), responses, rewards in zip(anchors, found, graded, strict=True):
            value = rewards.mean()
            gain = value - before.get(base, of_bases[row].mean())
            before[base] = value
            for new, reward in zip(responses, rewards, strict=True):
                trained.append((base, prefix, new, float((reward - value) / np.exp(gain))))
        return trained

    def tree(self, anchors, found, graded, of_bases, sequences, width):
        """Explored rollouts, and bases in blocks: a value against the root's and the parent's, over sqrt(leaves)."""
        trained = []
        for row, rewards in enumerate(of_bases):
            own = [i for i, anchor in enumerate(anchors) if anchor[0] == row]
            root = np.concatenate([rewards, *(graded[i] for i in own)]).mean()
            for base in range(len(rewards)):
                number = row * len(rewards) + base
                states = [i for i in own if anchors[i][1] == number]
                response = self.until_stop(sequences[number, width:])
                credit, parent, start = np.zeros(len(response)), root, 0
                for depth, i in enumerate([*states, None]):
                    leaves = np.concatenate([rewards[base : base + 1], *(graded[j] for j in states[depth:])])
                    end = len(response) if i is None else anchors[i][2] - width
                    credit[start:end] = (2 * leaves.mean() - root - parent) / np.sqrt(len(leaves))
                    parent, start = leaves.mean(), end
                    if i is not None:
                        trained += [
                            (number, anchors[i][2], new, float(2 * reward - root - parent))
                            for new, reward in zip(found[i], graded[i], strict=True)
                        ]
                trained.append((number, width, response, credit))
        return trained


def whole_bases(trained, rollouts: int):
    """The rows of the first bases that together have ``rollouts`` rollouts, as ours trains whole trunks."""
    end = min(rollouts, len(trained))
    while end < len(trained) and trained[end][0] == trained[end - 1][0]:
        end += 1
    return trained[:end]


def cache_of(layers):
    from transformers import DynamicCache

    cache = DynamicCache()
    for number, (keys, values) in enumerate(layers):
        cache.update(keys, values, number)
    return cache


def by_hand(args) -> None:
    marks = Marks(args.warm_up)
    trainer, rows = ByHand(args), json.loads(Path(args.problems).read_text())
    for step in range(args.steps):
        at = step * args.prompts
        marks.add(trainer.step(rows[at : at + args.prompts]))
    print(marks.line())
