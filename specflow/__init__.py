"""specflow: a YAML recipe becomes one readable step of speculative decoding, and tokens."""

__version__ = "0.1.0"
