"""Forebay: an LLM gateway that holds the flood upstream of the engines."""

__version__ = "0.1.0"
