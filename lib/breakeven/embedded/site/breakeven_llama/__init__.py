"""The model classes that the embedded engine serves, as a package for ``SGLANG_EXTERNAL_MODEL_PACKAGE``.

SGLang asks such a package first and then imports its own 200 model files only for an architecture that is not in it:
2 s less of every start. The target's forward pass is a leaner one (``lean.py``).
"""
