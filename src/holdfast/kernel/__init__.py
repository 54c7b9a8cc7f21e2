"""Values and rules without I/O, and the port that every store implements."""
