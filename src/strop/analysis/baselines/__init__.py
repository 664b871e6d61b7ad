"""Simpler codes of equal bits. A tokenizer that does not beat them has learned little.

Every baseline is fitted on fields that are not measured, spends at most the budget on each image
at a fixed rate, and gets the mean field of the fitted images for free. If there are several
layouts, the best one on a slice of the fitted fields is used.

mean-field  no bits: the mean over images at each location
kmeans      a VQ grid: square blocks of locations, each with one code, or with several codes of a
            residual quantizer if a block has more bits than one codebook can use
pca-K       K principal coefficients of the field; bits are allocated to minimise the error, and
            each coefficient has the optimal scalar quantizer of a normal variable
random      an untrained tokenizer of the same shape with a codebook of tokens of the fitted images;
            ridge regression maps its interpreted fields to the teacher's
"""

from strop.analysis.baselines.code import Code
from strop.analysis.baselines.equal_bits import fit_baselines

__all__ = ["Code", "fit_baselines"]
