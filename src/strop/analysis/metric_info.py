"""Every metric of the evaluations: its title, unit, direction and definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `better` is empty if neither direction is better."""

    title: str
    definition: str
    better: Literal["higher", "lower", ""] = "higher"
    unit: str = ""
    digits: int = 3

    @property
    def heading(self) -> str:
        """The heading of a column: title, unit and direction."""
        arrow = {"higher": " ↑", "lower": " ↓", "": ""}[self.better]
        return f"{self.title}{f' ({self.unit})' if self.unit else ''}{arrow}"

    def format(self, value: float | None) -> str:
        """A value with the metric's number of digits, or a dash for None."""
        return "–" if value is None else f"{value:,.{self.digits}f}"


METRICS: dict[str, Metric] = {
    # Alignment: the interpreted field against the teacher's, at the length the model chose.
    "cosine": Metric("cosine", "mean cosine over all locations of all images"),
    "r2": Metric("R²", "1 - squared error / squares about one scalar mean of all fields"),
    "r2_centred": Metric("R² centred", "1 - squared error / squares about each channel's mean"),
    "rmse": Metric("RMSE", "root of the mean squared error, in the teacher's scale", "lower"),
    "cosine_mean_field": Metric(
        "cosine, mean field", "cosine of the mean over images at each location: no bits", ""
    ),
    "r2_mean_field": Metric("R², mean field", "R² of the mean field: no bits", ""),
    "r2_centred_mean_field": Metric(
        "R² centred, mean field", "R² centred of the mean field: no bits", ""
    ),
    "effective_rank": Metric(
        "effective rank",
        "exp of the entropy of the normalised singular values of the teacher's centred patches",
        "",
        digits=1,
    ),
    # Codebook, over active tokens.
    "codebook_used": Metric("CB", "codes used at least once / codes", unit="%", digits=1),
    "codebook_effective": Metric("Eff. CB", "perplexity / codes", unit="%", digits=1),
    "perplexity": Metric("perplexity", "exp of the entropy of codes", digits=1),
    # Lengths.
    "length_mean": Metric("length", "mean length", "", "tokens", 2),
    "length_spread": Metric("length spread", "standard deviation of lengths", "", "tokens", 2),
    "length_least": Metric("least length", "shortest program", "", "tokens", 0),
    "length_most": Metric("most length", "longest program", "", "tokens", 0),
    "length_detail_correlation": Metric(
        "length and detail", "Pearson's r of length and the variance of the teacher's field", ""
    ),
    "objects_correlation": Metric(
        "length and objects",
        "Pearson's r of length and number of objects: the paper's figure only",
        digits=2,
    ),
    # Bits.
    "bits_fixed_rate": Metric("bits", "mean length * log2(codes)", "lower", "bits", 1),
    "bits_entropy": Metric(
        "bits, entropy-coded", "mean length * entropy of codes in bits", "lower", "bits", 1
    ),
    "bits_most": Metric("most bits", "K * log2(codes)", "lower", "bits", 0),
    "compression": Metric(
        "compression", "bits of the float32 field / bits", unit="times", digits=0
    ),
    "compression_least": Metric(
        "least compression", "bits of the float32 field / most bits", unit="times", digits=0
    ),
    # Baselines of equal bits.
    "margin_cosine": Metric("margin, cosine", "cosine above the best baseline of equal bits"),
    "margin_r2": Metric("margin, R²", "R² above the best baseline of equal bits"),
    "margin_r2_centred": Metric(
        "margin, R² centred", "R² centred above the best baseline of equal bits"
    ),
    # Rate and quality.
    "search_length_mean": Metric(
        "length by search",
        "mean of each image's shortest length within the tolerance of its best",
        "",
        "tokens",
        2,
    ),
    "search_correlation": Metric(
        "length and search", "Pearson's r of chosen and searched lengths", digits=3
    ),
    "regret_r2": Metric(
        "regret, R²",
        "R² of the best lengths of equal mean, image by image, less R² of the chosen ones",
        "lower",
        digits=4,
    ),
    "regret_r2_fixed": Metric(
        "regret of one length, R²",
        "R² of the best lengths of equal mean less R² of one length for all images",
        "lower",
        digits=4,
    ),
    "choice_gain_r2": Metric(
        "gain of choosing, R²",
        "R² of the chosen lengths less R² of one length of equal mean",
        digits=4,
    ),
    "search_cost": Metric(
        "cost of search", "time of the search / time of one pass", "lower", "times", 1
    ),
    # Pixels.
    "ssim": Metric("SSIM", "structural similarity of the decoder's preview to the image"),
    "ssim_mean_image": Metric("SSIM, mean image", "SSIM of the mean image: no bits", ""),
    "lpips": Metric("LPIPS", "perceptual distance of the preview to the image", "lower"),
    # Probes.
    "miou": Metric("mIoU", "mean over classes of intersection / union", unit="%", digits=1),
    "pixel_accuracy": Metric("pixel acc.", "share of correct pixels", unit="%", digits=1),
    "class_accuracy": Metric(
        "class acc.", "mean over classes of the share of correct pixels", unit="%", digits=1
    ),
    "map": Metric("mAP", "mean average precision over classes with positives", unit="%", digits=1),
    "map_11": Metric("mAP, 11-point", "the same with VOC 2007's 11 points", unit="%", digits=1),
    "depth_rmse": Metric("RMSE", "root mean squared error over valid pixels", "lower", "m"),
    "abs_rel": Metric("AbsRel", "mean of error / depth", "lower", "%", 1),
    "delta1": Metric("δ1", "pixels within a factor of 1.25", unit="%", digits=1),
    "delta2": Metric("δ2", "pixels within a factor of 1.25²", unit="%", digits=1),
    "delta3": Metric("δ3", "pixels within a factor of 1.25³", unit="%", digits=1),
    # Training.
    "training_hours": Metric(
        "training", "hours of training on one GPU: the paper's figure only", "lower", "h", 1
    ),
}
