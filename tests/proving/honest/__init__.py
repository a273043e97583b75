"""Changes that are honest: other numbers, other algorithms, another structure; one function."""
