"""Stands before rfc3987_syntax: jsonschema tries to import it, does without it, and waits 1.5 s for its grammar."""

raise ImportError("rfc3987_syntax is kept out of the embedded CPU engine: no server needs its check of IRIs")
