"""Claims about the properties that follow from a metric's name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors import Metric
from predictors.metrics import at_fidelity, decoding_order, split_fidelity
from search_spaces import InputError

MAXIMIZED = (
    "top1 top_5 top5 mAP map50 box_map auc AUROC f1 macro_f1 f1_score accuracy accuracy@4 "
    "val_accuracy acc acc@1 bleu "
    "mIoU recall@10 precision r2 psnr dice_score cifar10_test_accuracy reward ndcg@10 hit_rate "
    "f1-score "
    "time_series_accuracy top-1 quality R@1 hr@10 pass@1 exact_match auprc"
)
LOST = (
    "loss val_loss train_loss_epoch perplexity top1_error top5_err rmse mae wer fid nll "
    "accuracy_loss accuracy_drop "
    "inaccuracy accuracy_std top1_drop accuracy-loss"
)
MEASURED = (
    "peak_memory_mb pixel3_latency_ms energy_mj size_kb watts depth params_count mapping_ms map_ms "
    "accelerator_ms "
    "map_latency score_time seconds ms_per_image inference_s "
    "time_to_accuracy_s joules_per_s energy_per_s"
)


@pytest.mark.parametrize("name", MAXIMIZED.split())
def test_accuracies_are_maximized(name: str) -> None:
    metric = Metric.parse(name)
    assert (metric.kind, metric.direction, metric.sign) == ("accuracy", "maximize", -1.0)


@pytest.mark.parametrize("name", LOST.split())
def test_losses_are_qualities_to_minimize(name: str) -> None:
    metric = Metric.parse(name)
    assert (metric.kind, metric.direction, metric.sign) == ("accuracy", "minimize", 1.0)


@pytest.mark.parametrize("name", MEASURED.split())
def test_measurements_are_minimized(name: str) -> None:
    metric = Metric.parse(name)
    assert (metric.kind, metric.direction) == ("measured", "minimize")


@pytest.mark.parametrize(
    "name",
    [
        "throughput",
        "images_fps",
        "gpu_throughput_max",
        "images_per_s",
        "tokens_per_second",
        "img_s",
    ],
)
def test_throughputs_are_measured_and_maximized(name: str) -> None:
    metric = Metric.parse(name)
    assert (metric.kind, metric.direction) == ("measured", "maximize")


@pytest.mark.parametrize("name", ["params", "flops"])
def test_costs_that_follow_from_the_network_are_exact(name: str) -> None:
    assert Metric.parse(name) == Metric(name, "exact", "minimize", "")


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("pixel3_latency_ms", "ms"),
        ("peak_memory_mb", "mb"),
        ("energy_mJ", "mJ"),
        ("depth", ""),
        ("val_accuracy", "%"),
    ],
)
def test_a_unit_ends_the_name(name: str, unit: str) -> None:
    assert Metric.parse(name).unit == unit


def test_suffixes_override_the_name() -> None:
    assert Metric.parse("top1:min").direction == "minimize"
    metric = Metric.parse("usefulness:accuracy:max")
    assert (metric.name, metric.kind, metric.direction) == ("usefulness", "accuracy", "maximize")


@given(
    st.sampled_from([*MAXIMIZED.split(), *LOST.split(), *MEASURED.split(), "params"]),
    st.sampled_from(["", ":max", ":min"]),
    st.sampled_from(["", ":exact", ":measured", ":accuracy"]),
)
def test_a_printed_metric_is_parsed_to_itself(name: str, direction: str, kind: str) -> None:
    metric = Metric.parse(name + direction + kind)
    assert Metric.parse(str(metric)) == metric


@pytest.mark.parametrize(
    ("text", "price"),
    [
        ("params", "counted"),
        ("cpu_latency_ms", "measured"),
        ("top1", "trained"),
        ("val_loss", "trained"),
        ("file_size_kb:counted", "counted"),
        ("energy_mj:trained", "trained"),
        ("nwot:accuracy:measured:max", "measured"),
    ],
)
def test_a_metric_has_a_price_which_its_kind_implies_or_the_user_declares(
    text: str, price: str
) -> None:
    metric = Metric.parse(text)
    assert metric.price == price
    assert Metric.parse(str(metric)) == metric


def test_what_is_declared_is_not_guessed() -> None:
    metric = Metric("top1_latency_ms", kind="accuracy", direction="max", unit="%", price="counted")
    shown = "kind='accuracy', direction='maximize', unit='%', price='counted'"
    assert repr(metric) == f"Metric(name='top1_latency_ms', {shown})"
    assert Metric("wear").direction == "minimize"


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"kind": "speed"}, "kind 'speed' is none of exact, accuracy, measured"),
        ({"direction": "up"}, "direction 'up' is none of max"),
        ({"price": "free"}, "price 'free' is none of counted, trained, measured"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(declared: dict[str, str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Metric("top1", **declared)  # type: ignore[arg-type]


def test_exact_metrics_are_decoded_first_and_measurements_last() -> None:
    names = ["a_latency_ms", "top1", "params"]
    assert sorted(names, key=decoding_order) == ["params", "top1", "a_latency_ms"]


def test_a_curve_is_decoded_from_its_beginning() -> None:
    names = ["top1", "top1@12", "cpu_latency_ms", "top1@4", "params"]
    assert sorted(names, key=decoding_order) == [
        "params",
        "top1@4",
        "top1@12",
        "top1",
        "cpu_latency_ms",
    ]


@pytest.mark.parametrize("name", ["energy_mj@12", "energy_mj_12epochs", "energy_mj_12_epochs"])
def test_a_fidelity_changes_neither_unit_nor_direction(name: str) -> None:
    metric = Metric.parse(name)
    assert split_fidelity(name) == ("energy_mj", 12)
    assert (metric.fidelity, metric.unit, metric.direction) == (12, "mj", "minimize")


def test_a_metric_itself_has_the_highest_fidelity() -> None:
    assert (
        Metric.parse("accuracy").fidelity
        == float("inf")
        > Metric.parse(at_fidelity("accuracy", 200)).fidelity
        == 200
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (":max", "empty"),
        ("top1:up", "bad suffix 'up'"),
        ("top1:max:min", "more than one direction"),
        ("top1:counted:trained", "more than one direction, kind or price"),
    ],
)
def test_other_suffixes_and_empty_names_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Metric.parse(text)
