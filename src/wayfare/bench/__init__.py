"""Benchmarks: what the documentation says about speed, measured."""
