"""Reference pages, generated from the code that they describe."""
