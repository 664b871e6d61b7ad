"""Distillation: the student learns, and the saved folder loads as a DINOv3."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from tiny_training import smooth_pictures

from card import add_metrics
from distil import (
    CHECKPOINT,
    DistilConfig,
    distil,
    learning_rate,
    main,
    parse_network,
    parse_sizes,
)
from images import ImagePool, cache_views, read_images, resized
from networks import load_network
from strop.data import ScenesDataset
from strop.data.subset import Subset
from strop.errors import ConfigError, DataError, TeacherError, TrainingError
from strop.model.teacher import ARCHITECTURES, load_teacher
from strop.progress import no_progress
from strop.training.callbacks import read_metrics
from strop.training.run_checkpoint import (
    checkpoint_paths,
    read_checkpoint,
    write_checkpoint,
)
from strop.training.views import NUMBERS, random_views
from student import Target, coarser, distance, distortion, grouped

MINI = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_register_tokens": 4,
    "patch_size": 16,
}
SMALL = DistilConfig(
    student="mini",
    sizes=(32, 64),
    steps=40,
    batch=8,
    learning_rate=5e-3,
    held_out=16,
    log_every=10,
    validate_every=20,
)


@pytest.fixture(autouse=True)
def _mini(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "mini", MINI)


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    """uint8 (80, 3, 64, 64): coloured blocks, smoothed."""
    return smooth_pictures(80, 4)


@pytest.fixture(scope="module")
def networks(tmp_path_factory) -> list[str]:
    """A vision transformer of patch 14 and a ResNet of stride 32, both small and random."""
    folder = tmp_path_factory.mktemp("networks")
    torch.manual_seed(0)
    vit = transformers.Dinov2Config(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, patch_size=14, image_size=56
    )
    transformers.Dinov2Model(vit).save_pretrained(folder / "vit")
    resnet = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic"
    )
    transformers.ResNetModel(resnet).save_pretrained(folder / "resnet")
    return [str(folder / "vit"), str(folder / "resnet")]


@pytest.fixture(scope="module")
def distilled(networks, pictures, tmp_path_factory) -> tuple[Path, dict[str, float]]:
    out = tmp_path_factory.mktemp("distilled") / "mini"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ARCHITECTURES, "mini", MINI)
        metrics = distil(
            dict(zip(networks, (1.0, 0.5), strict=True)),
            [pictures[:60], pictures[60:]],
            out=out,
            config=SMALL,
            shares=[3, 1],
            notes=["vit: random, public domain"],
            limits=["Knows blocks.", "Nothing else."],
            device="cpu",
        )
    return out, metrics


@pytest.mark.slow
def test_the_student_learns_to_predict_held_out_images(distilled):
    lines = read_metrics(distilled[0] / "metrics.jsonl")
    early, late = (line for line in lines if line["kind"] == "validation")
    better = {
        key for key in late if key.endswith(("cosine", "r2_centred")) and late[key] > early[key]
    }
    assert len(better) >= 14  # of 2 networks x 2 sizes x patches and class x 2 metrics
    assert distilled[1]["vit, 64 px, patches, cosine"] > 0.3
    assert distilled[1]["geometry kept, 64 px"] > 0.7
    training = [line for line in lines if line["kind"] == "training"]
    assert [line["step"] for line in training] == [10, 20, 30, 40]
    assert training[-1]["vit patches"] < training[0]["vit patches"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, 64])
def test_the_result_loads_as_a_teacher_and_in_transformers(distilled, pictures, size):
    folder = str(distilled[0])
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    assert type(model) is transformers.DINOv3ViTModel
    images = F.interpolate(pictures[:2], (size, size))
    teacher = load_teacher(folder)
    tokens = model.eval()(pixel_values=teacher.preprocess(images)).last_hidden_state
    field = teacher(images)
    assert field.shape == (2, (size // 16) ** 2, 48)
    torch.testing.assert_close(field, tokens[:, 5:])


@pytest.mark.slow
def test_weights_are_bf16_and_the_card_names_their_sources(distilled):
    folder, metrics = distilled
    assert {v.dtype for v in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    card = (folder / "README.md").read_text(encoding="utf-8")
    for fact in (
        "vit`, with weight 1",
        "resnet`, with weight 0.5",
        "public domain",
        "75% of the",
        "## Limits\n\nKnows blocks. Nothing else.\n",
    ):
        assert fact in card
    assert "of 8 views" in card
    assert all(name in card for name in metrics)
    assert str(folder.parent) not in card
    add_metrics(folder, {"VOC mIoU of a linear probe": 0.25})
    assert "| VOC mIoU of a linear probe | 0.25 |" in (folder / "README.md").read_text("utf-8")


def test_the_same_seed_gives_the_same_weights_even_when_resumed(networks, pictures, tmp_path):
    short = DistilConfig(
        student="mini", sizes=(32,), steps=6, batch=4, held_out=8, validate_every=3
    )
    small = F.interpolate(pictures, (32, 32))

    def run(name: str, config: DistilConfig = short, **options) -> dict[str, torch.Tensor]:
        out = tmp_path / name
        distil(networks[:1], [small], out=out, config=config, dtype="fp32", device="cpu", **options)
        return load_file(out / "model.safetensors")

    once, again = run("once"), run("again")
    assert all(torch.equal(once[name], again[name]) for name in once)
    # as a kill after the third step would leave it
    (tmp_path / "again" / "checkpoints" / "step-00000006.safetensors").unlink()
    resumed = run("again", resume=True)
    assert all(torch.equal(once[name], resumed[name]) for name in once)
    steps = [line["step"] for line in read_metrics(tmp_path / "again" / "metrics.jsonl")]
    assert steps == [3, 6, 6]
    other = run("other", DistilConfig(**{**vars(short), "seed": 1}))
    assert any(not torch.equal(once[name], other[name]) for name in once)
    with pytest.raises(TrainingError, match="already holds a run"):
        run("once")
    with pytest.raises(TrainingError, match="has other settings: seed was 0, now 1"):
        run("once", DistilConfig(**{**vars(short), "seed": 1}), resume=True)


def test_unsuitable_checkpoints_are_refused(networks, pictures, tmp_path):
    small = F.interpolate(pictures, (32, 32))
    config = DistilConfig(student="mini", sizes=(32,), steps=2, batch=4, held_out=8)

    def resume(images: torch.Tensor) -> None:
        options = {"out": tmp_path, "config": config, "device": "cpu"}
        distil(networks[:1], [images], resume=True, **options)

    resume(small)  # there is no checkpoint yet
    with pytest.raises(TrainingError, match="images was 72, now 63"):
        resume(small[:70])
    (path,) = checkpoint_paths(tmp_path / "checkpoints")
    last = read_checkpoint(path, CHECKPOINT)
    write_checkpoint(path.parent, last.tensors, last.step, last.about, keep=1)
    with pytest.raises(TrainingError, match="not a strop distillation-checkpoint"):
        resume(small)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(TrainingError, match=r"No checkpoint in .* can be used"):
        resume(small)


@pytest.mark.slow
def test_the_student_learns_from_cached_views(networks, pictures, tmp_path, distilled):
    metrics = distil(
        networks, [pictures], out=tmp_path, config=replace(SMALL, views=3), device="cpu"
    )
    online, name = distilled[1], "vit, 64 px, patches, r2_centred"
    assert metrics[name] > 0.5 * online[name] > 0


def test_the_cache_has_views_of_each_image_and_mirrors_them_with_their_fields():
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1) * 40
    pool = ImagePool(images.expand(5, 3, 4, 4).contiguous(), (5,), (1.0,), images[:0])

    def fields_of(view: torch.Tensor) -> list[torch.Tensor]:
        """A field of 2 x 2 locations: the mean colour of the image, and the column."""
        colour = view.mean(dim=(1, 2, 3), keepdim=True).view(-1, 1, 1).expand(-1, 4, 1)
        column = torch.tensor([0.0, 1.0, 0.0, 1.0]).view(1, 4, 1).expand(len(view), -1, 1)
        return [torch.cat([colour, column], dim=2)]

    cache = cache_views(
        pool,
        fields_of,
        each=2,
        batch=3,
        seed=0,
        smallest=0.5,
        device=torch.device("cpu"),
        progress=no_progress,
    )
    assert cache.views.shape == (10, 3, 4, 4)
    rows = torch.tensor([4, 0, 4, 2])
    uniform = torch.tensor([[0.0, 0.9], [0.9, 0.9], [0.9, 0.1], [0.4, 0.1]])
    views, (fields,) = cache.batch(rows, uniform)
    # Recolouring changes grey by at most a few tens of per cent, and black not at all.
    assert views[1].max() == 0
    assert (views[[0, 2]] > views[3].max()).all()
    assert torch.allclose(fields[:, 0, 0].float(), views.mean(dim=(1, 2, 3)), rtol=0.01)
    assert fields[:, 0, 1].tolist() == [0, 0, 1, 1]  # the last two are mirrored
    assert not torch.equal(views[0], views[2])  # another view of the same image


def test_a_diverging_run_is_stopped(networks, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("distil._CLIP", float("nan"))
    with pytest.raises(TrainingError, match=r"by step 20: the term 'vit patches' is not finite"):
        distil(
            networks[:1],
            [F.interpolate(pictures, (32, 32))],
            out=tmp_path,
            config=DistilConfig(
                student="mini", sizes=(32,), steps=40, batch=4, held_out=8, log_every=20
            ),
            device="cpu",
        )


def test_weights_that_are_not_finite_are_not_saved(networks, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr("distil._CLIP", float("nan"))
    config = {"steps": 40, "batch": 4, "held_out": 8, "log_every": 20, "validate_every": 1}
    with pytest.raises(TrainingError, match=r"by step 1: the tensor 'student\..*' is not finite"):
        distil(
            networks[:1],
            [F.interpolate(pictures, (32, 32))],
            out=tmp_path,
            config=DistilConfig(student="mini", sizes=(32,), **config),
            device="cpu",
        )
    assert not checkpoint_paths(tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"networks": {}}, TrainingError, "no network to distil from. Name one with --from"),
        ({"networks": ["dinov9"]}, TeacherError, "Unknown teacher 'dinov9'"),
        ({"networks": {"random:tiny": 0.0}}, ConfigError, "weight of random:tiny is 0.0"),
        ({"networks": ["/a/net", "/b/net"]}, ConfigError, "Two networks are called 'net'"),
        ({"data": []}, TrainingError, "no images to train on"),
        ({"data": ["a/b"], "validation": "folder:a/b"}, TrainingError, "is both the training and"),
        ({"shares": [1.0, 2.0]}, ConfigError, "shares of 1 datasets are 1, 2"),
        (
            {"data": [torch.zeros(9, 3, 64, 64, dtype=torch.uint8)]},
            TrainingError,
            "one batch of 64",
        ),
        ({"data": [torch.zeros(99, 3, 8, 8)]}, DataError, "Give uint8 of shape"),
        ({"config": DistilConfig(student="tinny", sizes=(64,), batch=8)}, ConfigError, "'tiny'"),
    ],
)
def test_invalid_arguments_are_named(changes, error, message, pictures, tmp_path):
    options = {
        "networks": ["random:tiny"],
        "data": [pictures],
        "out": tmp_path,
        "config": DistilConfig(student="mini", sizes=(64,), batch=64),
        "device": "cpu",
        **changes,
    }
    with pytest.raises(error, match=message):
        distil(**options)


@pytest.mark.parametrize(
    "values",
    [{"sizes": (100,)}, {"sizes": ()}, {"steps": 0}, {"learning_rate": 0}],
)
def test_invalid_settings_are_refused(values):
    with pytest.raises(ConfigError, match=f"{next(iter(values))} (is|are) "):
        DistilConfig(**values)


# The parts.


def test_the_learning_rate_warms_up_and_decays_to_zero():
    config = DistilConfig(learning_rate=1e-3, warmup=0.1)
    assert learning_rate(config, 0.05) == pytest.approx(5e-4)
    assert learning_rate(config, 0.1) == pytest.approx(1e-3)
    assert learning_rate(config, 0.55) == pytest.approx(5e-4)
    assert learning_rate(config, 1.0) == pytest.approx(0)


def test_a_batch_follows_the_shares_of_the_datasets():
    pool = ImagePool(torch.empty(40, 0), (30, 10), (0.2, 0.8), torch.empty(0))
    rows = pool.rows(0, "rows", 3, 4000)
    assert torch.equal(rows, pool.rows(0, "rows", 3, 4000))
    assert not torch.equal(rows, pool.rows(0, "rows", 4, 4000))
    assert set(rows.tolist()) == set(range(40))
    assert (rows >= 30).float().mean().item() == pytest.approx(0.8, abs=0.03)


def test_a_view_with_neutral_numbers_is_the_image(pictures):
    still = torch.tensor([1.0, 0.5, 0.5, 0.5, 1.0, 0.5, 0.5, 0.5, 0.5]).expand(4, NUMBERS)
    images = pictures[:4]
    view = random_views(images, still, smallest=1.0)
    torch.testing.assert_close(view, images.float(), atol=1e-2, rtol=0)
    mirrored = still.clone()
    mirrored[:, 4] = 0.0
    view = random_views(images, mirrored, smallest=1.0)
    torch.testing.assert_close(view, images.flip(-1).float(), atol=1e-2, rtol=0)


def test_a_crop_has_the_drawn_share_of_the_image():
    """On a ramp from left to right, the range of values is the width of the window."""
    ramp = torch.arange(64, dtype=torch.uint8).mul(3).expand(1, 3, 64, 64)
    uniform = torch.tensor([[0.0, 0.5, 1.0, 0.5, 1.0, 0.5, 0.5, 0.5, 0.5]])
    view = random_views(ramp, uniform, smallest=0.25)[0, 0, 32]
    assert (view[-1] - view[0]).item() == pytest.approx(3 * 32, abs=3)
    assert view[-1].item() == pytest.approx(3 * 63, abs=3)  # the right half


def read(data):
    return read_images(
        [data],
        size=64,
        batch=8,
        held_out=8,
        shares=None,
        validation=None,
        device=torch.device("cpu"),
        workers=0,
        progress=no_progress,
    )


def test_images_of_other_sizes_or_types_are_refused(pictures):
    assert len(read(pictures).images) == 72
    for images in (pictures / 255, pictures[..., :32]):
        with pytest.raises(DataError, match=r"Give uint8 of shape \(n, 3, 64, 64\)"):
            read(images)
    with pytest.raises(DataError, match="holds no image"):
        read(Subset(ScenesDataset(1, size=64), []))


def test_views_stay_within_range_and_differ(pictures):
    uniform = torch.rand(80, NUMBERS, generator=torch.Generator().manual_seed(1))
    views = random_views(pictures, uniform, smallest=0.35)
    assert views.shape == pictures.shape
    assert views.min() >= 0
    assert views.max() <= 255
    assert (views - pictures).abs().mean(dim=(1, 2, 3)).min() > 1
    assert resized(views, 32).shape == (80, 3, 32, 32)


def test_targets_are_standardised_for_every_network():
    torch.manual_seed(0)
    field = torch.randn(40, 9, 6) * torch.tensor([0.0, 0.1, 1, 5, 20, 3]) + 7
    target = Target("x", [field[:20], field[20:]])
    for standard in (target.patches(field).flatten(0, 1), target.pooled(field)):
        assert standard.mean(0).abs().max() < 1e-4
        torch.testing.assert_close(standard.std(0)[2:], torch.ones(4), atol=1e-3, rtol=0)
        assert standard[:, 0].abs().max() < 1e-4  # a dead channel stays at zero


def test_perfect_predictions_have_no_loss():
    torch.manual_seed(0)
    field = torch.randn(3, 16, 8)
    assert distance(field, field).item() == pytest.approx(0, abs=1e-5)
    assert distance(-field, field).item() > 2
    turn = torch.linalg.qr(torch.randn(8, 8)).Q
    assert distortion(3 * field @ turn, field).item() == pytest.approx(0, abs=1e-5)
    assert distortion(torch.randn(3, 16, 5), field).item() > 0.5


def test_coarser_fields_are_means_of_two_by_two():
    field = torch.arange(16.0).view(1, 16, 1)
    assert coarser(field, torch.empty(1, 4, 7)).flatten().tolist() == [2.5, 4.5, 10.5, 12.5]
    assert coarser(field, torch.empty(1, 16, 7)) is field


def test_a_field_is_averaged_over_similar_locations_of_another():
    """Two orthogonal pairs of equal locations: weights e : e : 1 : 1 at temperature 1."""
    by = torch.tensor([[[2.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.0, 1.0]]])
    field = torch.tensor([[[1.0], [3.0], [10.0], [20.0]]])
    e = math.e
    first, second = (4 * e + 30) / (2 * e + 2), (4 + 30 * e) / (2 * e + 2)
    expected = torch.tensor([[[first], [first], [second], [second]]])
    torch.testing.assert_close(grouped(field, by, 1.0), expected)
    torch.testing.assert_close(
        grouped(field, by, 0.01), torch.tensor([[[2.0], [2.0], [15.0], [15.0]]])
    )


@pytest.mark.slow
def test_grouping_makes_the_second_network_easier_to_predict(networks, pictures, tmp_path):
    """Averaged targets are smoother; the first network's targets do not change."""

    def run(grouping: float) -> dict[str, float]:
        config = replace(SMALL, grouping=grouping)
        out = tmp_path / str(grouping)
        return distil(networks, [pictures], out=out, config=config, device="cpu")

    plain, averaged = run(0.0), run(0.2)
    second, first = "resnet, 64 px, patches, r2_centred", "vit, 64 px, patches, r2_centred"
    assert averaged[second] > plain[second]
    assert averaged[first] == pytest.approx(plain[first], abs=0.1)


# Convolutional networks.


def test_a_convolutional_network_gives_a_field(networks, pictures):
    network = load_network(networks[1])
    images = pictures[:2]
    raw = network.backbone(pixel_values=network.preprocess(images)).last_hidden_state
    field = network(images)
    assert field.shape == (2, 16, 12)
    expected = F.interpolate(raw, (4, 4), mode="bilinear", antialias=True)
    torch.testing.assert_close(field, expected.flatten(2).transpose(1, 2))


def torchvision_weights(model: transformers.MobileNetV2Model) -> dict[str, torch.Tensor]:
    """The weights of a MobileNetV2 under the names that torchvision gives them, in fp16."""
    # The projection at the end of a block has no activation, hence no separate group.
    layers = [("features.0.", 0, model.conv_stem.first_conv)]
    layers += [("features.1.conv.0.", 0, model.conv_stem.conv_3x3)]
    layers += [("features.1.conv.", 1, model.conv_stem.reduce_1x1)]
    for number, block in enumerate(model.layer, start=2):
        layers += [(f"features.{number}.conv.0.", 0, block.expand_1x1)]
        layers += [(f"features.{number}.conv.1.", 0, block.conv_3x3)]
        layers += [(f"features.{number}.conv.", 2, block.reduce_1x1)]
    layers += [("features.18.", 0, model.conv_1x1)]
    stored = {"classifier.1.weight": torch.zeros(10, 1280), "classifier.1.bias": torch.zeros(10)}
    for prefix, first, layer in layers:
        for number, part in enumerate((layer.convolution, layer.normalization), start=first):
            for key, value in part.state_dict().items():
                stored[f"{prefix}{number}.{key}"] = value.clone().half()
    return stored


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory) -> tuple[Path, transformers.MobileNetV2Model]:
    """A strided MobileNetV2 of transformers, and a folder with its weights as torchvision's."""
    torch.manual_seed(0)
    config = transformers.MobileNetV2Config(tf_padding=False, layer_norm_eps=1e-5)
    model = transformers.MobileNetV2Model(config).eval()
    for part in model.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight, mode="fan_out")
        if isinstance(part, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(part.running_mean, -0.2, 0.2)
            torch.nn.init.uniform_(part.running_var, 0.5, 1.5)
    model.half().float()
    folder = tmp_path_factory.mktemp("mobilenet_v2")
    save_file(torchvision_weights(model), folder / "model.safetensors")
    return folder, model


def test_torchvisions_mobilenet_keeps_its_features_at_every_second_location(mobilenet, pictures):
    folder, model = mobilenet
    network = load_network(str(folder))
    field = network(pictures[:2])
    assert field.shape == (2, 16, 1280)
    with torch.no_grad():
        strided = model(pixel_values=network.preprocess(pictures[:2])).last_hidden_state
    dense = field.transpose(1, 2).unflatten(2, (4, 4))
    torch.testing.assert_close(dense[..., ::2, ::2], strided, atol=1e-3, rtol=1e-3)
    assert strided.std() > 0.01


def test_other_weights_without_a_config_are_refused(mobilenet, tmp_path):
    stored = load_file(mobilenet[0] / "model.safetensors")
    del stored["features.18.0.weight"]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(TeacherError, match=r"does not hold torchvision's MobileNetV2"):
        load_network(str(tmp_path))


@pytest.mark.shared
def test_the_shared_networks_can_be_distilled(shared, tmp_path):
    teachers = shared / "teachers"
    metrics = distil(
        [str(teachers / "vits14-focus"), str(teachers / "mobilenet_v2")],
        [f"shards:{shared}/data/coco-shards/*train*.tar?limit=12"],
        out=tmp_path,
        config=DistilConfig(student="mini", sizes=(32, 64), steps=2, batch=4, held_out=1),
        device="cpu",
    )
    assert metrics["effective rank, 64 px"] > 1
    assert load_teacher(str(tmp_path)).width == 48


@pytest.mark.shared
def test_the_shared_mobilenet_recognises_cats(shared):
    """Its own classifier on the mean of the field recognises most photographs of cats."""
    from strop.data.spec import open_dataset
    from strop.images import fit_square

    folder = shared / "teachers" / "mobilenet_v2"
    voc = open_dataset(f"voc:{shared}/data/voc2012?split=val&limit=120")
    cat = voc.label_names.index("cat")
    found = [record.image for record in map(voc.__getitem__, range(120)) if record.labels[cat]]
    pixels = torch.stack([fit_square(image, 224) for image in found[:8]])
    stored = load_file(folder / "model.safetensors")
    scores = load_network(str(folder))(pixels).mean(1) @ stored["classifier.1.weight"].float().T
    animals = (scores + stored["classifier.1.bias"].float()).argmax(1) < 398
    cats = ((scores.argmax(1) >= 281) & (scores.argmax(1) <= 293)).float().mean()
    assert animals.float().mean() > 0.6
    assert cats >= 0.4


# The command line.


@pytest.mark.slow
def test_the_command_distils_a_teacher_and_resumes(tmp_path, capsys):
    out = tmp_path / "mine[1]"
    arguments = ["--from", "random:tiny=0.5", "--data", "scenes:?n=10&size=32"]
    arguments += ["--data", "scenes:?n=12&size=32&seed=1", "--share", 3, "--share", 1, "--out", out]
    arguments += ["--student", "mini", "--sizes", "16,32", "--steps", 2, "--batch", 4]
    arguments += ["--val", "scenes:?n=4&size=32&seed=2", "--workers", 0, "--device", "cpu"]
    arguments = list(map(str, arguments))
    main([*arguments, "--note", "random numbers: nobody's"])
    assert "random:tiny, 32 px, patches, r2_centred" in capsys.readouterr().out
    assert load_teacher(str(out)).width == 48
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "`random:tiny`, with weight 0.5" in card
    assert "nobody's" in card
    assert "22, and 4 held out" in card
    main([*arguments, "--resume"])
    assert f"The teacher is in {out}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dinov3-s", ("dinov3-s", 1.0)),
        ("/a/b=2.5", ("/a/b", 2.5)),
        ("/run/lr=x/model", ("/run/lr=x/model", 1.0)),
        ("timm:net=1e-1", ("timm:net", 0.1)),
    ],
)
def test_a_network_may_have_a_weight(text, expected):
    assert parse_network(text) == expected


def test_sizes_that_are_not_numbers_are_named():
    with pytest.raises(ConfigError, match="--sizes is 'big'"):
        parse_sizes("big")
