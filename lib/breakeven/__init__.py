"""Find out whether speculative decoding pays in SGLang on this machine, and what would make it pay."""

__version__ = "0.1.0"
