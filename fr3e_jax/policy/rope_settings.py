"""The rotary embedding in ``config.json``: base and scaling, read or refused by name, and written.

transformers 4 has ``rope_theta`` and ``rope_scaling`` at the top, 5 has both in ``rope_parameters``. A family whose
layers with a window have a base of their own has ``rope_local_base_freq`` at the top, or one object for each kind of
layer in ``rope_parameters``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fr3e_jax.json_object import shown
from fr3e_jax.policy.families.family import Family
from fr3e_jax.policy.rotary import RopeScaling

_DEFAULT_THETA = 10000.0  # of transformers, where config.json has none
_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # keys that a scaling needs, and those it may have
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), ("original_max_position_embeddings",)),
    "yarn": (("factor",), ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow")),
}
_ANYWHERE = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "truncate"}
_LAYERS = ("full_attention", "sliding_attention")


class Rope(NamedTuple):
    """The rotary embedding of a config.json."""

    theta: float
    scaling: RopeScaling | None
    local_theta: float  # 0: no layer has a base of its own
    problems: list[str]  # one line each; with any, the other fields count for nothing


def is_number(value: Any) -> bool:
    """True if a value of config.json is a number above 0 that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300


def read_rope(config: dict[str, Any], family: Family) -> Rope:
    """Base and scaling in a Hugging Face ``config.json``, whose missing keys have the family's defaults."""
    problems: list[str] = []
    places: dict[str, dict] = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = config.get(name) or {}
        if isinstance(value, dict):
            places[name] = value
        else:
            problems.append(f"{name}={shown(value)} is not a JSON object")
    local = {"rope_theta": config.get("rope_local_base_freq")} if family.local_rope else {}
    nested = places.get("rope_parameters", {})
    if family.local_rope and nested.keys() & set(_LAYERS):
        full, local = (nested.get(name) or {} for name in _LAYERS)
        if not isinstance(full, dict) or not isinstance(local, dict) or nested.keys() - set(_LAYERS):
            problems.append(f"rope_parameters={shown(nested)} is not one object for each of {' and '.join(_LAYERS)}")
            full, local = {}, {}
        places["rope_parameters"] = full
        if local.keys() - {"rope_theta", "rope_type"} or local.get("rope_type", "default") != "default":
            problems.append(f"rope_parameters of sliding_attention={shown(local)} is not supported (rope scaling)")
    scalings = dict.fromkeys(_scaling(name, section, config, family, problems) for name, section in places.items())
    chosen = [scaling for scaling in scalings if scaling]
    if len(chosen) > 1:
        problems.append("rope_scaling and rope_parameters differ")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        problems.append(f"partial_rotary_factor={shown(config['partial_rotary_factor'])} is not supported")
    thetas = list(dict.fromkeys(_theta(section, problems) for section in (config, *places.values())))
    thetas = [theta for theta in thetas if theta]
    if len(thetas) > 1:
        problems.append(f"rope_theta is given twice with different values, {' and '.join(map(str, thetas))}")
    theta = next(iter(thetas), family.defaults.get("rope_theta", _DEFAULT_THETA))
    local_theta = (_theta(local, problems) or family.defaults["rope_local_base_freq"]) if family.local_rope else 0.0
    return Rope(theta, next(iter(chosen), None), float(local_theta), list(dict.fromkeys(problems)))


def _theta(section: dict[str, Any], problems: list[str]) -> float:
    """``rope_theta`` of an object, 0 if it has none."""
    value = section.get("rope_theta")
    if value is not None and not is_number(value):
        problems.append(f"rope_theta={shown(value)} is not a number above 0")
    return float(value) if is_number(value) else 0.0


def _scaling(
    name: str, section: dict[str, Any], config: dict[str, Any], family: Family, problems: list[str]
) -> RopeScaling | None:
    section = {key: value for key, value in section.items() if value is not None}
    kinds = {key: section[key] for key in ("rope_type", "type") if key in section}
    # Without a type, any key but the base is a scaling whose kind some version of transformers guessed.
    bare = not kinds and bool(section.keys() - {"rope_theta"})
    kind = section.get("rope_type", section.get("type", "default"))
    unlike = len({shown(value) for value in kinds.values()}) > 1
    if section.get("partial_rotary_factor", 1.0) != 1.0 or section.get("truncate", True) is not True or bare or unlike:
        problems.append(f"{name}={shown(section)} is not supported (rope scaling)")
        return None
    if kind == "default":
        return None
    if not isinstance(kind, str) or kind not in _KINDS:
        problems.append(f"{name}={shown(section)} is not supported (rope scaling, only {', '.join(_KINDS)})")
        return None
    needed, possible = _KINDS[kind]
    if other := sorted(section.keys() - _ANYWHERE - set(needed) - set(possible)):
        problems.append(f"{name} of type {kind} with {', '.join(other)} is not supported")
    values = {key: section[key] for key in (*needed, *possible) if key in section}
    if (original := "original_max_position_embeddings") in possible:
        values.setdefault(original, config.get("max_position_embeddings"))
        if not family.local_rope:  # as in transformers, which lets the key at the top override the one beside the kind
            values[original] = config.get(original, values[original])
    if wrong := [key for key in {**dict.fromkeys(needed), **values} if not is_number(values.get(key))]:
        problems.append(f"{name}={shown(section)} lacks a number above 0 in {', '.join(wrong)}")
        return None
    scaling = RopeScaling(kind, **{key: float(value) for key, value in values.items()})
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        problems.append(f"{name}={shown(section)}: low_freq_factor is not below high_freq_factor")
    return scaling


def written_rope(theta: float, scaling: RopeScaling | None, local_theta: float) -> dict[str, Any]:
    """The keys of ``config.json``, as transformers 4 and 5 read them."""
    keys: dict[str, Any] = {"rope_theta": theta}
    if scaling:
        names = [name for group in _KINDS[scaling.kind] for name in group]
        values = {name: getattr(scaling, name) for name in names}
        if "original_max_position_embeddings" in values:
            values["original_max_position_embeddings"] = int(scaling.original_max_position_embeddings)
        if not values.get("attention_factor", 1):
            del values["attention_factor"]
        keys["rope_scaling"] = {"rope_type": scaling.kind} | values
    return keys | ({"rope_local_base_freq": local_theta} if local_theta else {})
