"""Claims about data sets: the same images however they are stored, and one clear line for every bad
file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nas.evaluation.datasets import Part, arrays, augment, digits, load_dataset
from nas.evaluation.datasets.dataset import Scale
from nas.evaluation.measurement import Measurement
from search_spaces.common.errors import InputError
from search_spaces.ir.graph import Typed

RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (20, 3, 6, 5), np.uint8), np.arange(20) % 4


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def images(folder: Path, classes: dict[str, int], size: tuple[int, int] = (5, 6)) -> None:
    """Folders of random colour images."""
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = RNG.integers(0, 256, (size[1], size[0], 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")


def test_digits_are_small_and_the_same_every_time() -> None:
    data = load_dataset("digits")
    assert data.shape == (1, 8, 8)
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test), data.outputs) == (
        512,
        643,
        642,
        10,
    )
    assert data.metric == "digits_accuracy"
    assert (
        data.fingerprint == digits.__wrapped__().fingerprint != digits(train_images=511).fingerprint
    )


def test_npz_is_normalized_per_channel_by_its_training_part(tmp_path: Path) -> None:
    data = load_dataset(
        npz(tmp_path / "mine.npz", x_train=X, y_train=Y, x_test=X[:4] // 2, y_test=Y[:4])
    )
    assert (data.name, data.shape, data.outputs) == ("mine", (3, 6, 5), 4)
    np.testing.assert_allclose(data.train.inputs.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(data.train.inputs.std((0, 2, 3)), 1, atol=1e-5)
    assert data.test.inputs.mean() < -0.5  # darker than the training images
    assert data.train.inputs.dtype == np.float32


@pytest.mark.parametrize(
    "x", [X.transpose(0, 2, 3, 1), (X / 255).astype(np.float64)], ids=["channels last", "float"]
)
def test_npz_in_other_layouts_is_the_same_data(tmp_path: Path, x: np.ndarray) -> None:
    stored = [npz(tmp_path / f"{i}.npz", x=v, y=Y) for i, v in enumerate((X, x))]
    a, b = map(load_dataset, stored)
    np.testing.assert_allclose(a.train.inputs, b.train.inputs, atol=1e-5)


def test_npz_without_test_part_is_split_by_the_seed(tmp_path: Path) -> None:
    path = npz(
        tmp_path / "a.npz", x=np.arange(40).repeat(6).reshape(40, 2, 3) / 40, y=np.arange(40) % 2
    )

    def held(seed: int) -> list[float]:
        return load_dataset(path, seed=seed).test.inputs[:, 0, 0, 0].round(4).tolist()

    assert len(held(0)) == 8
    assert held(0) == held(0) != held(1)


def test_folders_are_classes_in_alphabetical_order(tmp_path: Path) -> None:
    images(tmp_path / "pets" / "train", {"dog": 3, "cat": 2})
    images(tmp_path / "pets" / "test", {"dog": 1})
    (tmp_path / "pets" / "train" / "cat" / "notes.txt").write_text("not an image")
    data = load_dataset(tmp_path / "pets")
    assert data.train.targets.tolist() == [0, 0, 1, 1, 1]
    assert data.test.targets.tolist() == [1]
    assert (data.metric, data.shape, data.outputs) == ("pets_accuracy", (3, 6, 5), 2)


def test_folder_is_resized_to_the_networks_input(tmp_path: Path) -> None:
    images(tmp_path / "pets", {"dog": 5, "cat": 5}, size=(9, 4))
    assert load_dataset(tmp_path / "pets", (1, 8, 8)).shape == (1, 8, 8)
    assert load_dataset(tmp_path / "pets", (3, 7, 6)).train.inputs.shape == (8, 3, 7, 6)


@given(shift=st.integers(0, 3), flip=st.booleans(), seed=st.integers(0, 99))
def test_augmentation_shifts_and_mirrors_and_adds_no_content(
    shift: int, flip: bool, seed: int
) -> None:
    x = np.zeros((8, 2, 9, 9), np.float32)
    x[:, :, 4, 4] = [1, 2]
    moved = augment(x, np.random.default_rng(seed), shift, 0, flip)
    for image in moved:
        assert image.sum((1, 2)).tolist() == [1, 2]
        (row,), (column,) = np.nonzero(image[0])
        assert max(abs(row - 4), abs(column - 4)) <= shift
        assert image[1, row, column] == 2  # channels move together


def test_mirroring_is_left_to_right() -> None:
    x = np.arange(3, dtype=np.float32).reshape(1, 1, 1, 3).repeat(50, 0)
    seen = {
        tuple(row) for row in augment(x, np.random.default_rng(0), 0, 0, True)[:, 0, 0].tolist()
    }
    assert seen == {(0, 1, 2), (2, 1, 0)}


def test_a_validation_part_is_the_files_own_or_a_share_of_the_training_part(tmp_path: Path) -> None:
    own = load_dataset(npz(tmp_path / "own.npz", x=X, y=Y, x_val=X[:7], y_val=Y[:7]))
    assert len(own.with_validation(0.5).validation or ()) == 7
    data = load_dataset(npz(tmp_path / "a.npz", x=X, y=Y))
    assert data.validation is None
    first, again = data.with_validation(0.25), replace(data).with_validation(0.25)
    assert first.validation is not None
    assert (len(first.train), len(first.validation), len(first.test)) == (12, 4, 4)
    assert first.fingerprint == again.fingerprint
    parts = [first.train.inputs, first.validation.inputs]
    assert sorted(np.concatenate(parts).sum((1, 2, 3))) == sorted(data.train.inputs.sum((1, 2, 3)))


def test_numbers_are_predicted_in_their_own_unit(tmp_path: Path) -> None:
    y = np.stack([np.arange(20) * 10.0, np.arange(20) - 100.0], 1)
    data = load_dataset(npz(tmp_path / "house.npz", x_train=X, y_train=y, x_test=X, y_test=y))
    assert (data.is_regression, data.outputs) == (True, 2)
    assert (data.metric, data.test_metric) == ("house_rmse", "house_test_rmse")
    assert data.target_scale is not None
    np.testing.assert_allclose(data.train.targets.std(0), 1, atol=1e-5)
    np.testing.assert_allclose(
        data.test.targets * data.target_scale.std + data.target_scale.mean, y, rtol=1e-4
    )


def test_inputs_may_be_vectors_sequences_or_token_ids(tmp_path: Path) -> None:
    vectors, steps = RNG.normal(5, 2, (20, 3)), RNG.normal(5, 2, (20, 6, 3))
    ids = RNG.integers(0, 50, (20, 9))
    found = load_dataset(
        npz(tmp_path / "v.npz", x_train=vectors, y_train=Y, x_test=vectors, y_test=Y)
    )
    assert found.shape == (3,)
    np.testing.assert_allclose(found.train.inputs.mean(0), 0, atol=1e-5)  # each feature by itself
    path = npz(tmp_path / "s.npz", x=steps, y=Y)
    assert load_dataset(path, (6, 3)).shape == (6, 3)
    assert load_dataset(path).shape == (1, 6, 3)  # a grey image, unless networks take sequences
    tokens = npz(tmp_path / "t.npz", x_train=ids, y_train=Y, x_test=ids, y_test=Y)
    assert load_dataset(tokens).shape == Typed((9,), "int64")
    np.testing.assert_array_equal(load_dataset(tokens, Typed((9,), "int64")).train.inputs, ids)
    assert load_dataset(tokens, (9,)).shape == (9,)  # whole numbers, for networks that take vectors


def test_images_with_numbers_are_listed_in_a_table(tmp_path: Path) -> None:
    images(tmp_path / "faces", {"train": 6, "val": 2, "test": 3})
    files = [
        f"{part}/{i}.png"
        for part, count in (("train", 6), ("val", 2), ("test", 3))
        for i in range(count)
    ]
    rows = [f"{file},{place},{-place}" for place, file in enumerate(files)]
    (tmp_path / "faces" / "targets.csv").write_text("\n".join(["file,age,height", *rows]))
    data = load_dataset(tmp_path / "faces")
    assert (data.metric, data.outputs, data.shape) == ("faces_rmse", 2, (3, 6, 5))
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (6, 2, 3)
    (tmp_path / "faces" / "targets.csv").write_text("file,age\ntrain/0.png,old\n")
    with pytest.raises(
        InputError, match=r"targets\.csv, line 2, column 'age': 'old' is not a finite number"
    ):
        load_dataset(tmp_path / "faces")
    (tmp_path / "faces" / "targets.csv").write_text("image,age\ntrain/0.png,3\n")
    with pytest.raises(InputError, match="needs a column `file`"):
        load_dataset(tmp_path / "faces")


def test_a_folder_may_have_validation_images(tmp_path: Path) -> None:
    for part, count in (("train", 3), ("val", 2), ("test", 1)):
        images(tmp_path / "pets" / part, {"dog": count, "cat": count})
    data = load_dataset(tmp_path / "pets")
    assert data.validation is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (6, 4, 2)


OK = {"x": X, "y": Y}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no arrays": ({"z": X}, "needs the arrays x_train, y_train, x_test, y_test, or x and y"),
    "labels missing in part": ({"x": X, "y_test": Y}, "it has x"),
    "too few labels": ({**OK, "y": Y[:-1]}, "20 whole numbers are needed"),
    "labels of another kind": ({**OK, "y": np.array(["a"] * 20)}, "y is <U1"),
    "numbers of another length": ({**OK, "y": Y[1:] / 2}, "20 classes or numbers are needed"),
    "number that is none": ({**OK, "y": np.where(Y > 2, np.nan, Y)}, "y has NaN"),
    "classes beside numbers": (
        {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y / 2},
        "test targets are numbers (20, 1), but training targets are classes (20,)",
    ),
    "validation labels missing": ({**OK, "x_val": X}, "lacks y_val"),
    "negative token ids": ({**OK, "x": X.reshape(20, -1).astype(np.int64) - 1}, "token id -1"),
    "text": ({**OK, "x": np.array([["a"] * 3] * 20)}, "store uint8 or float32"),
    "labels from 1": ({**OK, "y": Y + 1}, "must be 0, 1, 2"),
    "negative labels": ({**OK, "y": Y - 1}, "must be 0, 1, 2"),
    "numbers instead of samples": (
        {**OK, "x": X[:, 0, 0, 0]},
        "(n, channels, height, width) or the like is needed",
    ),
    "no images": ({**OK, "x": X[:0]}, "(n, channels, height, width) or the like is needed"),
    "integer pixels": ({**OK, "x": X.astype(np.int32)}, "store pixels as uint8 or float32"),
    "not finite": ({**OK, "x": np.where(X > 250, np.nan, X)}, "NaN"),
    "objects": ({**OK, "y": np.array([{}] * 20, object)}, "not a readable .npz file"),
    "one image": ({"x": X[:1], "y": Y[:1]}, "too few"),
    "other test shape": (
        {"x_train": X, "y_train": Y, "x_test": X[:, :, 1:], "y_test": Y},
        "but training inputs have shape",
    ),
    "other test classes": (
        {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y + 1},
        "a test label is not among the 4 classes",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_npz_is_named(tmp_path: Path, case: str) -> None:
    arrays, message = BAD[case]
    with pytest.raises(InputError) as caught:
        load_dataset(npz(tmp_path / "bad.npz", **arrays))
    assert message in str(caught.value)
    assert str(tmp_path / "bad.npz") in str(caught.value)


def test_truncated_or_huge_npz_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = npz(tmp_path / "a.npz", **OK)
    monkeypatch.setattr(arrays, "MAX_BYTES", 1000)
    with pytest.raises(InputError, match="the limit is"):
        load_dataset(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="not a readable"):
        load_dataset(path)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"train/a": 2, "train/b": 2}, "both train and test"),
        ({"a": 3}, "at least two"),
        ({"a": 0, "b": 0}, "no images"),
    ],
)
def test_bad_folder_is_named(tmp_path: Path, classes: dict[str, int], message: str) -> None:
    images(tmp_path, classes)
    with pytest.raises(InputError, match=message) as caught:
        load_dataset(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_class_that_only_the_test_part_has_is_named(tmp_path: Path) -> None:
    images(tmp_path / "train", {"a": 1, "b": 1})
    images(tmp_path / "test", {"a": 1, "c": 1})
    with pytest.raises(InputError, match="no such class"):
        load_dataset(tmp_path)


def test_damaged_image_is_named(tmp_path: Path) -> None:
    images(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "b" / "1.png").write_bytes(b"\x89PNG")
    with pytest.raises(InputError, match=r"1\.png: not a readable image"):
        load_dataset(tmp_path, (3, 4, 4))


@pytest.mark.parametrize(
    ("source", "message"),
    [("digit", "did you mean 'digits'"), ("none.npz", "none.npz: no such file")],
)
def test_missing_data_set_is_named(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_dataset(source)


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1")
    with pytest.raises(InputError, match=r"a\.csv: a data set is"):
        load_dataset(tmp_path / "a.csv")


def test_the_fingerprint_distinguishes_data_sets() -> None:
    data = digits()
    labels = data.train.targets.copy()
    labels[0] += 1
    other = replace(data, train=Part(data.train.inputs, labels))
    assert other.fingerprint != data.fingerprint != replace(data, validation=None).fingerprint


def test_the_fingerprint_does_not_depend_on_how_a_machine_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another processor sums the mean of the inputs, and draws the noise of digits, with other last
    digits.
    """
    path = npz(tmp_path / "a.npz", x=(X / 7).astype(np.float32), y=np.arange(len(X)) / 3)
    scaled, augmented = load_dataset(path), digits.__wrapped__()
    normalize, augment_exactly = Scale.normalize, augment
    monkeypatch.setattr(
        Scale,
        "normalize",
        lambda self, values: np.nextafter(normalize(self, values), np.float32(9)),
    )
    monkeypatch.setitem(
        digits.__wrapped__.__globals__,
        "augment",
        lambda *args: np.nextafter(augment_exactly(*args), np.float32(9)),
    )
    for one, other in ((scaled, load_dataset(path)), (augmented, digits.__wrapped__())):
        assert not np.array_equal(one.test.inputs, other.test.inputs)
        assert one.fingerprint == other.fingerprint
        assert one.with_validation(0.25).fingerprint == other.with_validation(0.25).fingerprint
    changed = X.copy()
    changed[0, 0, 0, 0] ^= 1
    changed_file = npz(
        tmp_path / "b.npz", x=(changed / 7).astype(np.float32), y=np.arange(len(X)) / 3
    )
    assert load_dataset(changed_file).fingerprint != scaled.fingerprint
    settings = [
        digits.__wrapped__(**{name: value})
        for name, value in (("seed", 1), ("noise", 0.2), ("shift", 0))
    ]
    assert len({data.fingerprint for data in (*settings, augmented)}) == 4


def test_inputs_alone_serve_networks_that_imitate_a_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", x=X)
    data = load_dataset(tmp_path / "images.npz")
    assert not data.labelled
    assert load_dataset("digits").labelled
    with pytest.raises(
        InputError, match=r"images.npz has inputs, but no targets: add y, or search by fidelity"
    ):
        Measurement(("images_accuracy",), data)


def test_raw_inputs_are_not_normalized(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", x=X, y=Y)
    raw, scaled = (
        load_dataset(f"raw:{tmp_path / 'images.npz'}"),
        load_dataset(tmp_path / "images.npz"),
    )
    assert raw.input_scale is None
    assert scaled.input_scale is not None
    again = (raw.train.inputs - scaled.input_scale.mean) / scaled.input_scale.std
    np.testing.assert_allclose(again, scaled.train.inputs, atol=1e-5)
    assert load_dataset(raw.source).fingerprint == raw.fingerprint != scaled.fingerprint
