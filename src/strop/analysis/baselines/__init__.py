"""What simpler codes of equal bits reach. A tokenizer that does not beat them has learned little.

Every baseline is fitted on fields that are not measured, spends at most the budget on an image at
a fixed rate, and knows the mean field of the fitted images for nothing. Where a kind leaves a
choice of layout, the choice is made on a slice of the fitted fields, in the baseline's favour.

mean-field  no bits: the mean over images at each location
kmeans      a VQ grid: square blocks of locations, each written as one code, or as a few of a
            residual quantizer where a block has more bits than one codebook can use
pca-K       K principal coefficients of the field; bits go where they save most error, and each
            coefficient has the best scalar quantizer of a normal variable
random      an untrained tokenizer of the same shape, its codebook placed on tokens of the fitted
            images, what it interprets mapped to the teacher's field by ridge regression
"""

from strop.analysis.baselines.code import Code
from strop.analysis.baselines.fit import fit_baselines

__all__ = ["Code", "fit_baselines"]
