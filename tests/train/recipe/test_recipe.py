"""The recipe file: whole, unchanged, and from here, or refused in one line."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import msgspec
import pytest

from ratchet.base.errors import RecipeError
from ratchet.train.recipe import SCHEMA, ModelSignature, Recipe
from ratchet.train.recipe.installed import InstalledKernel
from ratchet.train.workloads.config import StepConfig


def make() -> Recipe:
    return Recipe(
        workload="llama-8m",
        device="d1",
        device_name="a CPU",
        software="s1",
        versions={"torch": "2.13.0"},
        config=StepConfig(precision="bf16_master", compile_mode="default", kernels=("rms_norm",)),
        kernels=(
            InstalledKernel(library="rms_norm", entry="rms_norm_forward", hash="ab", isa="x"),
        ),
        speedup={"vs_compile": {"ratio": 1.5}},
        changes_arithmetic=True,
        created_at="2026-01-01T00:00:00+00:00",
    )


def refused(path: Path) -> str:
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_saved_recipe_loads_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    make().save(path)
    assert Recipe.load(path) == make().sealed()
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_recipe_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none.json")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refused(tmp_path)


def test_a_pipe_without_a_writer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a FIFO" in refused(tmp_path / "pipe")


def test_a_device_is_refused() -> None:
    assert "is a device" in refused(Path("/dev/zero"))


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "recipe.json").open("wb") as file:
        file.truncate(1 << 33)
    assert "more than 8388608 bytes" in refused(tmp_path / "recipe.json")


def test_a_path_with_a_null_byte_is_refused() -> None:
    assert "cannot be read" in refused(Path("a\0b"))


@pytest.mark.parametrize("depth", [100, 500, 5_000, 200_000])
def test_deep_nesting_is_refused(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "recipe.json"
    path.write_text("[" * depth)
    assert "damaged" in refused(path)
    document = msgspec.json.encode(make().sealed()).decode()
    nested = '{"a":' * depth + "1" + "}" * depth
    path.write_text(document.replace('{"ratio":1.5}', nested))
    refused(path)


def test_a_number_of_many_digits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(msgspec.json.encode(make().sealed()).decode().replace("1.5", "9" * 5000))
    assert "damaged" in refused(path)


def test_a_recipe_from_before_the_model_was_kept_still_loads(tmp_path: Path) -> None:
    document = msgspec.to_builtins(make().sealed())
    del document["model"], document["optimizer"], document["parallel"]
    content = {name: value for name, value in document.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True)
    document["checksum"] = hashlib.sha256(text.encode()).hexdigest()
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(document))
    assert Recipe.load(path).model is None


def test_the_model_and_the_optimizer_are_under_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    model = ModelSignature(tensors=2, parameters=12, shapes="s")
    recipe = msgspec.structs.replace(make(), model=model, optimizer="AdamW")
    recipe.save(path)
    assert Recipe.load(path).model == model
    path.write_text(path.read_text().replace('"AdamW"', '"SGD"'))
    assert "changed after it was written" in refused(path)


@pytest.mark.parametrize("keep", [0, 1, 40, 400])
def test_a_truncated_recipe_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "recipe.json"
    make().save(path)
    path.write_text(path.read_text()[:keep])
    assert "damaged" in refused(path)


def test_a_recipe_edited_by_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    make().save(path)
    path.write_text(path.read_text().replace('"bf16_master"', '"fp32"'))
    assert "changed after it was written" in refused(path)


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    document = msgspec.to_builtins(make().sealed())
    document["config"]["turbo"] = True
    path.write_text(json.dumps(document))
    assert "turbo" in refused(path)


def test_a_newer_schema_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"schema_version": SCHEMA + 1}))
    assert f"schema {SCHEMA + 1}" in refused(path)


@pytest.mark.parametrize("text", ["[]", "3", '"recipe"', "null", "{}"])
def test_json_that_is_no_recipe_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(text)
    assert "damaged" in refused(path)


def test_binary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert "not text" in refused(path)


def test_another_device_or_version_is_refused() -> None:
    recipe = make()
    recipe.check_here(device="d1", device_name="a CPU", software="s1")
    with pytest.raises(RecipeError, match="a CPU, but this is another CPU"):
        recipe.check_here(device="d2", device_name="another CPU", software="s1")
    with pytest.raises(RecipeError, match=r"torch 2\.13\.0"):
        recipe.check_here(device="d1", device_name="a CPU", software="s2")
