"""The model: one file per stage of the paper's figure, and `tokenizer`, which composes them."""
