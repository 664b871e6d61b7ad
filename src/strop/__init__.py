"""strop: images as short programs of discrete codes, interpreted back into a DINO patch field."""
