"""What an all-reduce costs at the sizes that decoding and verifying send. Knows nothing of servers."""
