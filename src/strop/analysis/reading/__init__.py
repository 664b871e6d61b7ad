"""Reading scenes from programs: by a trained network, by a language model, and by questions."""
