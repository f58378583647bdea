"""Messages on paths that hold no model with safetensors: a description of their content, and the way out.

It imports the standard library only, and lies beside the rooms.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

POINTER = "is Git's pointer to a large file; fetch the file with `git lfs pull`"
_SHOWN = 4  # files of an unknown folder in a message
_PAGE = re.compile(
    r"(?:https?://|hf://)?(?:www\.)?(?:huggingface\.co/|hf\.co/)?(?P<id>[\w.-]+/[\w.-]+?)(?:/(?:tree|blob)/.*)?/?"
)
_CACHE = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)")
_CONVERT = "load it with transformers and save it with save_pretrained, which writes safetensors, and name that folder"
_OTHERS = (  # a pattern of files, what a folder with one of them is, and the way out
    ("*.gguf", "GGUF files, quantised for llama.cpp", "name the folder or id of the model that they were made from"),
    ("*.ggml", "GGML files, quantised for llama.cpp", "name the folder or id of the model that they were made from"),
    ("model_index.json", "a pipeline of diffusers", "name a language model"),
    ("consolidated*", "weights in their publisher's own format", "name the repository in Hugging Face's format"),
    ("pytorch_model*.bin", "weights as PyTorch's pickles", _CONVERT),
    ("*.bin", "weights as pickles", _CONVERT),
    ("*.pt*", "weights as PyTorch's pickles", _CONVERT),
    ("*.h5", "weights of TensorFlow", _CONVERT),
    ("*.msgpack", "weights of Flax", _CONVERT),
    ("*.onnx", "a network of ONNX", "name the model that it was made from"),
    ("*.npz", "weights as NumPy's archives (MLX)", "name the model that they were made from"),
)


def description(folder: Path) -> str:
    """A sentence on a folder that holds no config.json or no weights as safetensors, and the setting to change."""
    names = sorted(path.name for path in folder.iterdir())
    if "adapter_config.json" in names:
        return f"it is a LoRA adapter: set model.lora.path={folder} and model.path to its base{_base(folder)}"
    if run := next((above for above in (folder, *folder.parents[:3]) if _holds_run(above)), None):
        subject = "a training run" if run == folder else f"part of the training run {run}"
        return f"it is {subject}: write its model with `fr3e export {run} DIR`, and set model.path=DIR"
    if match := _CACHE.fullmatch(folder.name):
        return f"it is a folder of the hub's cache: set model.path={match['owner']}/{match['name']}"
    models = sorted(
        path.parent.relative_to(folder) for depth in ("*", "*/*") for path in folder.glob(f"{depth}/config.json")
    )
    if models:
        return (
            f"it holds {'a model' if len(models) == 1 else 'models'} further down: set model.path={folder / models[0]}"
        )
    for pattern, content, way_out in _OTHERS:
        if files := sorted(folder.glob(pattern)):
            return f"it holds {content} ({files[0].name}): {way_out}"
    if not names:
        return "it is empty"
    if any(name.endswith(".safetensors") for name in names) and "config.json" not in names:
        return "it holds weights alone: copy the config.json and the tokenizer's files of the model beside them"
    if any(name.startswith("tokenizer") for name in names) and "config.json" not in names:
        return f"it holds a tokenizer alone: name the model as model.path, and {folder} as model.tokenizer"
    return f"it holds {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"


def _base(folder: Path) -> str:
    try:
        base = json.loads((folder / "adapter_config.json").read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f", {base}" if base else ""


def _holds_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and any((folder / n).exists() for n in ("checkpoints", "metrics.jsonl"))


def is_pointer(file: Path) -> bool:
    """True for the few lines that Git leaves in place of a large file."""
    with file.open("rb") as stream:
        return stream.read(40).startswith(b"version https://git-lfs")


def correction(name: str, setting: str) -> str:
    """The setting that was meant by a name that is no folder, for a message; "" if nothing is near."""
    path = Path(name.strip()).expanduser()
    if path.is_file():
        if path.suffix in (".gguf", ".ggml"):
            return f"it is a file of llama.cpp: {_OTHERS[0][2]}"
        return f"it is a file: {setting}={path.parent}"
    if path.is_dir():
        return f"without the spaces: {setting}={path}"
    if (match := _PAGE.fullmatch(name.strip())) and match["id"] != name and not path.is_absolute():
        return f"the id is {setting}={match['id']}"
    if path.parent.is_dir():
        folders = [each.name for each in path.parent.iterdir() if each.is_dir()]
        if nearest := difflib.get_close_matches(path.name, folders, n=1):
            return f"nearest: {setting}={path.parent / nearest[0]}"
    return ""
