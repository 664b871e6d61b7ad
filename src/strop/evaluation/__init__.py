"""Evaluation: how well fields are reproduced, and what frozen representations still tell."""
