from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fr3e_jax.runs import checkpoint_content
from fr3e_jax.runs.checkpoint_content import CheckpointFailed, DamagedCheckpoint, OtherFormat, flatten_arrays
from fr3e_jax.runs.checkpoints import Checkpointer


def opened(tmp_path, *, keep_last: int = 2, keep_best: int = 1, **scores) -> Checkpointer:
    limits = {"keep_last": keep_last, "keep_best": keep_best}
    return Checkpointer(tmp_path / "checkpoints", best_metric="avg@16", **limits, **scores)


def mesh_of(*shape: int) -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(shape), ("fsdp", "tensor"))


def training_state(mesh: Mesh, spec: PartitionSpec, width: int = 16) -> dict:
    """Parameters with integer keys and two dtypes, and the AdamW state after a step."""
    kernels = jax.random.normal(jax.random.key(1), (2, 8, width))
    # 2 before 10 as numbers, after it as names.
    layers = {2: {"kernel": kernels[0]}, 10: {"kernel": kernels[1].astype(jnp.bfloat16)}}
    params = {"layers": layers, "norm": jnp.linspace(0.0, 1.0, width)}
    params = jax.tree.map(
        lambda leaf: jax.device_put(leaf, NamedSharding(mesh, spec if leaf.ndim == 2 else PartitionSpec())), params
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    gradients = jax.tree.map(lambda leaf: leaf * leaf.dtype.type(0.3), params)
    _, optimizer_state = optimizer.update(gradients, optimizer.init(params), params)
    return {"params": params, "optimizer": optimizer_state}


def abstract(state):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


def assert_bits_equal(found, expected) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert left.dtype == right.dtype
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


def tiny(value: float) -> dict:
    return {"w": jnp.full((4,), value, jnp.float32)}


def test_training_state_comes_back_bit_for_bit_on_another_mesh(tmp_path):
    saved = training_state(mesh_of(len(jax.devices()), 1), PartitionSpec("fsdp", "tensor"))
    host = {"position": 7, "loss": 0.1 + 0.2, "batch": [{"ids": [1, 2], "nan": None}], "name": "é"}
    with opened(tmp_path) as checkpointer:
        assert checkpointer.save(3, saved, host, None)
    devices = len(jax.devices())
    other = mesh_of(2, devices // 2) if devices > 1 else mesh_of(1, 1)
    # Other values in the same structure: the content must come from the file.
    wanted = training_state(other, PartitionSpec("tensor", "fsdp"))
    wanted = jax.tree.map(jnp.zeros_like, wanted)
    with opened(tmp_path) as checkpointer:
        found, found_host = checkpointer.restore(checkpointer.latest_step(), abstract(wanted))
    assert_bits_equal(found, saved)
    assert found_host == host
    shardings = jax.tree.map(
        lambda left, right: left.sharding.is_equivalent_to(right.sharding, left.ndim), found, wanted
    )
    assert all(jax.tree.leaves(shardings))


def test_arrays_may_be_donated_as_soon_as_save_returns(tmp_path):
    overwrite = jax.jit(lambda array: array * 0 - 1, donate_argnums=0)
    content = np.arange(2_000_000, dtype=np.float32)
    array = jax.device_put(content, NamedSharding(mesh_of(len(jax.devices()), 1), PartitionSpec("fsdp")))
    with opened(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": array}, {}, None)
        replaced = overwrite(array).block_until_ready()
        found, _ = checkpointer.restore(1, {"w": replaced})
    np.testing.assert_array_equal(np.asarray(found["w"]), content)


def test_keeps_the_last_and_the_best(tmp_path):
    scores = {1: 0.1, 2: 0.9, 3: None, 4: float("nan"), 5: 0.3, 6: None, 7: None}
    with opened(tmp_path) as checkpointer:
        assert (checkpointer.latest_step(), checkpointer.best_step()) == (None, None)
        for step, score in scores.items():
            checkpointer.save(step, tiny(step), {}, None if score is None else {"avg@16": score, "greedy": 1.0})
        checkpointer.wait()
        assert (checkpointer.all_steps(), checkpointer.latest_step(), checkpointer.best_step()) == ([2, 6, 7], 7, 2)
    with opened(tmp_path, scores={1: 0.1, 2: 0.9, 5: 0.3}) as checkpointer:
        assert (checkpointer.all_steps(), checkpointer.latest_step(), checkpointer.best_step()) == ([2, 6, 7], 7, 2)
        found, _ = checkpointer.restore(2, tiny(0))
        assert found["w"][0] == 2
        checkpointer.save(8, tiny(8), {}, {"avg@16": 0.95})
        checkpointer.wait()
        assert (checkpointer.all_steps(), checkpointer.best_step()) == ([7, 8], 8)


def test_without_best_only_the_last_are_kept(tmp_path):
    with opened(tmp_path, keep_last=1, keep_best=0) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, tiny(step), {}, {"avg@16": 1.0 / step})
        checkpointer.wait()
        assert checkpointer.all_steps() == [3]


def test_other_shapes_paths_and_dtypes_are_listed(tmp_path):
    saved = {"layers": {0: jnp.zeros((2, 3))}, "norm": jnp.zeros(3), "old": jnp.zeros(1), "count": jnp.int32(0)}
    wanted = {
        "layers": {0: jnp.zeros((2, 4))},
        "norm": jnp.zeros(3, jnp.bfloat16),
        "new": jnp.zeros(2),
        "count": jnp.int32(0),
    }
    with opened(tmp_path) as checkpointer:
        checkpointer.save(1, saved, {}, None)
        with pytest.raises(ValueError) as caught:
            checkpointer.restore(1, wanted)
    message = str(caught.value)
    assert "step 1" in message and "4 of its arrays differ" in message and "runtime.run_dir" in message
    assert [line.strip() for line in message.splitlines() if line.startswith("  ")] == [
        "layers/0: found float32[2,3], expected float32[2,4]",
        "new: found nothing, expected float32[2]",
        "norm: found float32[3], expected bfloat16[3]",
        "old: found float32[1], expected nothing",
    ]


KILLED_WHILE_SAVING = """
import os, signal, sys
import jax.numpy as jnp
from fr3e_jax.runs.checkpoints import Checkpointer
checkpointer = Checkpointer(sys.argv[1], keep_last=2, keep_best=1, best_metric="avg@16")
checkpointer.save(1, {"w": jnp.full((4,), 1.0)}, {"position": 1}, None)
checkpointer.wait()
for name in ("rename", "replace"):
    original = getattr(os, name)
    def rename(source, target, *args, original=original, **kwargs):
        if os.path.basename(target) == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        return original(source, target, *args, **kwargs)
    setattr(os, name, rename)
checkpointer.save(2, {"w": jnp.full((4,), 2.0)}, {"position": 2}, None)
checkpointer.wait()
"""


def test_a_save_cut_by_sigkill_is_ignored_and_the_step_before_is_used(tmp_path):
    directory = tmp_path / "checkpoints"
    process = subprocess.run([sys.executable, "-c", KILLED_WHILE_SAVING, str(directory)], capture_output=True)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    leftovers = [path for path in directory.iterdir() if path.name not in ("1", "2")]
    assert leftovers and not (directory / "2").exists()
    with opened(tmp_path) as checkpointer:
        assert checkpointer.latest_step() == 1
        found, host = checkpointer.restore(1, tiny(0))
        assert (float(found["w"][0]), host) == (1.0, {"position": 1})
        # Not step 2, whose own saving would replace the leftovers.
        assert checkpointer.save(3, tiny(3), {"position": 3}, None)
        assert not any(path.exists() for path in leftovers)
        found, _ = checkpointer.restore(3, tiny(0))
        assert (found["w"][0], checkpointer.all_steps()) == (3, [1, 3])


def test_a_deletion_cut_by_a_kill_leaves_the_other_steps_readable(tmp_path):
    with opened(tmp_path) as checkpointer:
        checkpointer.save(1, tiny(1), {}, None)
        checkpointer.save(2, tiny(2), {}, {"avg@16": 0.5})
    for path in (tmp_path / "checkpoints" / "1").rglob("*"):
        if path.is_file():
            path.unlink()
    with opened(tmp_path, scores={2: 0.5}) as checkpointer:
        assert (checkpointer.latest_step(), checkpointer.best_step()) == (2, 2)
        found, _ = checkpointer.restore(2, tiny(0))
        assert found["w"][0] == 2


def test_error_in_the_background_surfaces_on_the_next_call(tmp_path, monkeypatch):
    checkpointer = opened(tmp_path)
    checkpointer.save(1, tiny(1), {}, None)
    checkpointer.wait()

    def full_disk(source, target, *args, **kwargs):
        raise OSError(28, "No space left on device")

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, full_disk)
    checkpointer.save(2, tiny(2), {}, None)
    with pytest.raises(
        RuntimeError, match=r"background failed in .*No space left on device.*complete steps there: \[1\]"
    ):
        checkpointer.save(3, tiny(3), {}, None)
    monkeypatch.undo()
    with opened(tmp_path) as reopened:
        assert reopened.latest_step() == 1


def test_saved_step_is_left_alone_and_earlier_ones_are_refused(tmp_path):
    with opened(tmp_path) as checkpointer:
        assert checkpointer.save(5, tiny(5), {}, None)
        assert not checkpointer.save(5, tiny(6), {}, None)
        found, _ = checkpointer.restore(5, tiny(0))
        assert found["w"][0] == 5
        with pytest.raises(ValueError, match="cannot save step 4: .* already holds step 5"):
            checkpointer.save(4, tiny(4), {}, None)
        with pytest.raises(FileNotFoundError, match=re.escape("no checkpoint of step 4; found the steps [5]")):
            checkpointer.restore(4, tiny(0))


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ({"by_step": {1: 2}}, r"host\['by_step'\] has the keys \[1\]"),
        ({"rows": [1, (2, 3)]}, r"host\['rows'\]\[1\] is \(2, 3\) \(tuple\)"),
        ({"loss": np.float32(1)}, r"host\['loss'\] is .*\(float32\)"),
    ],
)
def test_host_state_that_json_would_change_is_refused(tmp_path, host, message):
    with opened(tmp_path) as checkpointer:
        with pytest.raises(TypeError, match=message):
            checkpointer.save(1, tiny(1), host, None)
        assert checkpointer.latest_step() is None


def test_leaves_must_be_arrays_with_paths_of_their_own():
    with pytest.raises(TypeError, match=r"params/step is 3 \(int\); expected an array"):
        flatten_arrays({"params": {"step": 3}})
    with pytest.raises(ValueError, match="two arrays at 0/w"):
        flatten_arrays({"0": {"w": jnp.ones(1)}, "0/w": jnp.ones(1)})


def test_a_checkpoint_that_cannot_fit_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    checkpointer = opened(tmp_path)
    checkpointer.save(1, tiny(1), {}, None)
    checkpointer.wait()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=3))
    with pytest.raises(CheckpointFailed, match=r"saving step 2 failed: No space left in .*: 0.0 MB are free, .*steps"):
        checkpointer.save(2, tiny(2), {}, None)
    checkpointer.close()  # says nothing for a second time
    assert sorted(path.name for path in tmp_path.rglob("[0-9]*") if path.is_dir()) == ["1"]


def test_orbax_logs_nothing_and_other_loggers_are_untouched(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG):
        with opened(tmp_path) as checkpointer:
            checkpointer.save(1, tiny(1), {}, None)
        logging.getLogger("absl").warning("from elsewhere")
    assert [record.message for record in caplog.records if record.name == "absl"] == ["from elsewhere"]


def test_a_step_saved_before_its_evaluation_is_ranked_by_it(tmp_path):
    with opened(tmp_path, keep_last=1) as checkpointer:
        checkpointer.save(1, tiny(1), {}, {"avg@16": 0.1})
        checkpointer.save(2, tiny(2), {}, None)
        checkpointer.wait()
        assert checkpointer.best_step() == 1
    with opened(tmp_path, keep_last=1, scores={1: 0.1}) as checkpointer:
        assert not checkpointer.save(2, tiny(9), {}, {"avg@16": 0.9})
        checkpointer.rank(2, {"avg@16": 0.0})  # it has a score now
        checkpointer.rank(2, {"avg@16": float("nan")})
        checkpointer.save(3, tiny(3), {}, {"avg@16": 0.5})
        checkpointer.wait()
        assert (checkpointer.all_steps(), checkpointer.best_step()) == ([2, 3], 2)
        found, _ = checkpointer.restore(2, tiny(0))
        assert found["w"][0] == 2


@pytest.mark.parametrize("key", [b'"checksum"', b'"checksums"', b'"host"', b'"arrays"'])
def test_a_flipped_bit_in_a_key_of_the_host_state_is_damage(tmp_path, key):
    with opened(tmp_path) as checkpointer:
        checkpointer.save(1, tiny(1), {"position": 3}, None)
        checkpointer.wait()
        file = tmp_path / "checkpoints" / "1" / "host" / "metadata"
        content = file.read_bytes()
        assert content.count(key) == 1
        file.write_bytes(content.replace(key, key[:2] + bytes([key[2] ^ 1]) + key[3:]))
        with pytest.raises(DamagedCheckpoint, match="step 1 is damaged, in .*host"):
            checkpointer.restore(1, tiny(0))


@pytest.mark.parametrize(
    "found", [checkpoint_content.FORMAT - 1, checkpoint_content.FORMAT + 1], ids=["earlier", "later"]
)
def test_a_checkpoint_of_another_format_is_refused_by_name(tmp_path, monkeypatch, found):
    """It is neither read nor taken for a damaged one, which would be moved away."""

    def content_of(host, arrays):
        content = checkpoint_content.content_of(host, arrays) | {"format": found}
        del content["checksum"]
        return content | {"checksum": checkpoint_content.checksum_of_json(content)}

    with monkeypatch.context() as patch, opened(tmp_path) as checkpointer:
        patch.setattr("fr3e_jax.runs.checkpoints.content_of", content_of)
        checkpointer.save(4, tiny(4), {"step": 4}, None)
    with opened(tmp_path) as checkpointer, pytest.raises(OtherFormat) as refused:
        checkpointer.restore_newest(tiny(0))
    message = str(refused.value)
    assert f"the checkpoint of step 4 in {tmp_path}" in message
    assert f"found format {found}, expected {checkpoint_content.FORMAT}; finish the run" in message
    with opened(tmp_path) as checkpointer:
        assert checkpointer.all_steps() == [4]
