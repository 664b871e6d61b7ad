"""Probes: what frozen representations still tell about classes and depth."""
