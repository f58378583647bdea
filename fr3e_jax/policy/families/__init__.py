"""The families of networks, one module each, by Hugging Face's ``model_type``."""

from fr3e_jax.policy.families.family import Family
from fr3e_jax.policy.families.gemma2 import GEMMA2
from fr3e_jax.policy.families.gemma3 import GEMMA3
from fr3e_jax.policy.families.llama import LLAMA
from fr3e_jax.policy.families.qwen2 import QWEN2
from fr3e_jax.policy.families.qwen3 import QWEN3
from fr3e_jax.policy.families.qwen3_moe import QWEN3_MOE

FAMILIES: dict[str, Family] = {family.model_type: family for family in (QWEN2, QWEN3, QWEN3_MOE, LLAMA, GEMMA2, GEMMA3)}
